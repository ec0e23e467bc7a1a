"""What a submodule returns for free sizes, learned from two runs of it without numbers.

Running layers on fake tensors with symbols takes most of the time of a recording. A submodule that
stays a single call decides by the real sizes whenever it runs, so of it only the shapes that come
out matter: it runs on two choices of sizes, and what varies like a size that goes in is that size.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.graph.likeness import PLAIN, likeness
from fleetx.record.error import refusal
from fleetx.record.shapes import Shapes
from fleetx.record.source_lines import user_line
from fleetx.record.variable import Variable
from fleetx.torch_internals import (
    as_if_compiling,
    storage_number,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_unflatten,
    version_of,
    without_torch_function,
)

Sizes = Mapping[Any, int]
"""Symbol -> the number that stands for it."""


Runs = dict[Hashable, tuple[Any, Any]]
"""Calls of submodules that are alike -> what they returned for two choices of sizes."""


def probed(
    shapes: Shapes, module: nn.Module, path: str, given: tuple[Any, Any], kept: Runs
) -> Any | None:
    """What a call returns, as fake tensors of the recording; None where two runs do not tell.

    That is so if it fails on tensors of torch's meta device, changes what it is given, returns
    parts of it, or returns a size that no size of its arguments explains.
    """
    first, second = shapes.hints, _varied(shapes.hints)
    with suppress(Exception):  # whatever it is, the run with symbols then says it better
        key = likeness(module, path), *(_told(shapes, given, sizes) for sizes in (first, second))
        if None in key or key not in kept:
            few, many = (_run(shapes, module, given, sizes) for sizes in (first, second))
            kept[key] = few, many
        few, many = kept[key]
        if few is None or many is None:
            return None
        return _of_both(shapes, few, many, _known(shapes, given, first, second))
    return None


def tried(shapes: Shapes, module: nn.Module, given: tuple[Any, Any], example: Sizes) -> Any | None:
    """The same of a submodule that needs numbers: it runs on some that are made up.

    With other numbers it might return something else, so what is found must be checked whenever
    the submodule runs, and it may return parts of what it is given.

    Args:
        shapes: those of the recording.
        module: what is called.
        given: its arguments.
        example: the sizes of the example, which are small.
    """
    first, second = dict(example), _varied(example)

    def run(sizes: Sizes) -> Any | None:
        with suppress(Exception):  # whatever it is, the run with symbols then says it better
            return _run(shapes, module, given, sizes, numbers=True)
        return None

    if (few := run(first)) is None:
        return None
    if (many := run(second)) is None:
        _refuse_other_sizes(shapes, [s for s in first if run({**first, s: second[s]}) is None])
        return None
    with suppress(ValueError):  # what comes out is not explained by what goes in
        return _of_both(shapes, few, many, _known(shapes, given, first, second))
    return None


def _refuse_other_sizes(shapes: Shapes, fixed: Sequence[Any]) -> None:
    """Say which dimension must be as it is in the example, if one must be."""
    for symbol in fixed:
        name, at = shapes.origin[symbol]
        what = f"a submodule that decides by numbers fails if dimension {at} of {name!r} differs"
        raise refusal(user_line(), what, "give it its size.", dimension=(name, at))


def _of_both(shapes: Shapes, few: Any, many: Any, known: "Known") -> Any | None:
    """What two runs returned, for free sizes."""
    (one, kind), (other, same) = tree_flatten(few), tree_flatten(many)
    if kind != same:
        return None
    leaves = [_joined(shapes, a, b, known) for a, b in zip(one, other, strict=True)]
    return tree_unflatten(leaves, kind)


Told = tuple[torch.dtype, tuple[Any, ...]] | tuple[Any]
"""Format and sizes of a tensor, or another value."""


def described(found: Any) -> tuple[Told, ...]:
    """What can be held against what a call returns later."""
    return tuple(
        (leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, Tensor) else (leaf,)
        for leaf in tree_leaves(found)
    )


def check_described(found: Any, path: str, told: tuple[Told, ...]) -> None:
    """Refuse what a submodule returned if the code after it was recorded for something else."""
    now = described(found)
    if now != told:
        raise ValueError(
            f"{path!r} decides by numbers and returned {now}, and the model was cut for one that "
            f"returns {told}, as it does for made-up numbers, so that the code after it might be "
            "another. Let it return the same shapes, types and Python values whatever the numbers "
            "are, or put what follows it into the same submodule."
        )


def _varied(hints: Sizes) -> dict[Any, int]:
    """Another choice of sizes, which tells all symbols apart."""
    return {
        symbol: hint - 1 - at if hint > at + 3 else hint + 1 + at
        for at, (symbol, hint) in enumerate(hints.items())
    }


def _told(shapes: Shapes, given: Any, sizes: Sizes) -> Hashable | None:
    """What decides how a call goes; None if something unknown may."""
    found: list[Hashable] = []
    leaves, kind = tree_flatten(given)
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            fake = leaf.fake if isinstance(leaf, Variable) else leaf
            shape = tuple(shapes.number(size, sizes) for size in fake.shape)
            found.append((shape, fake.dtype, fake.requires_grad))
        elif isinstance(leaf, torch.SymInt):
            found.append(shapes.number(leaf, sizes))
        elif isinstance(leaf, PLAIN):
            found.append((type(leaf), leaf))
        else:
            return None
    return str(kind), *found


def _run(
    shapes: Shapes, module: nn.Module, given: Any, sizes: Sizes, *, numbers: bool = False
) -> Any | None:
    """One call, on the meta device or on numbers; None if it did more than to return something."""
    named = dict((*module.named_parameters(), *module.named_buffers()))
    device = _home(named.values()) if numbers else torch.device("meta")

    def concrete(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            fake = leaf.fake if isinstance(leaf, Variable) else leaf
            shape = [shapes.number(size, sizes) for size in fake.shape]
            made = _filled(torch.empty(shape, dtype=fake.dtype, device=device))
            return made.requires_grad_(fake.requires_grad)
        return shapes.number(leaf, sizes) if isinstance(leaf, torch.SymInt) else leaf

    def own(tensor: Tensor) -> Tensor:
        if numbers and not tensor.is_meta:
            made = tensor.detach().clone()
        else:
            made = _filled(torch.empty_like(tensor, device=device, requires_grad=False))
        return made.requires_grad_(tensor.requires_grad)

    cards = [device] if device.type == "cuda" else []
    # Code that has another way for compilers, without numbers, takes it where there are none.
    way = nullcontext() if numbers else as_if_compiling()
    # A layer may draw on the CPU whether to run, and draws again when it really does.
    with torch.random.fork_rng(devices=cards), without_torch_function(), way:
        args, kwargs = tree_map(concrete, given)
        state = {name: own(tensor) for name, tensor in named.items()}
        before = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        versions = [version_of(tensor) for tensor in before]
        found = torch.func.functional_call(module, state, args, kwargs)
    if versions != [version_of(tensor) for tensor in before]:
        return None
    return found if numbers or _apart(found, (*before, *state.values())) else None


def _apart(found: Any, others: Iterable[Tensor]) -> bool:
    """Whether the tensors in what was returned have memory of their own."""
    made = [storage_number(leaf) for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
    held = {storage_number(tensor) for tensor in others}
    return held.isdisjoint(made) and len({*made}) == len(made)


def _home(tensors: Iterable[Tensor]) -> torch.device:
    """Where a module computes; one without numbers gets some on the CPU."""
    real = (tensor.device for tensor in tensors if not tensor.is_meta)
    return next(real, torch.device("cpu"))


def _filled(tensor: Tensor) -> Tensor:
    """Made-up numbers: zeros, which every index has, and fractions where there are such."""
    return tensor.uniform_() if tensor.is_floating_point() else tensor.zero_()


Known = Mapping[tuple[int, int], Any]
"""A size in the two runs -> the size that it is."""


def _known(shapes: Shapes, given: Any, first: Sizes, second: Sizes) -> Known:
    tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Variable)]
    sizes: list[Any] = [size for variable in tensors for size in variable.fake.shape]
    sizes += [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.SymInt)]
    free = [size for size in sizes if isinstance(size, torch.SymInt)]
    return {(shapes.number(s, first), shapes.number(s, second)): s for s in free}


def _joined(shapes: Shapes, one: Any, other: Any, known: Known) -> Any:
    """What a leaf is for free sizes."""
    if not isinstance(one, Tensor):
        if one is not other and one != other:
            raise ValueError("it returns a number that depends on sizes")
        return one
    sizes = [_size(a, b, known) for a, b in zip(one.shape, other.shape, strict=True)]
    strides = one.stride()
    order = sorted(range(one.dim()), key=lambda at: (-strides[at], at))
    return shapes.empty(sizes, order, one.dtype, requires_grad=one.requires_grad)


def _size(one: int, other: int, known: Known) -> Any:
    if one == other:
        return one
    if (one, other) in known:
        return known[one, other]
    for (a, b), size in known.items():
        if a and b and one % a == 0 and other % b == 0 and one // a == other // b:
            return size * (one // a)
    raise ValueError("no size that goes in explains one that comes out")

"""What a submodule returns for free sizes, learned from two runs of it without numbers.

Running layers on fake tensors with symbols takes most of the time of a recording. A submodule that
stays a single call decides by the real sizes whenever it runs, so of it only the shapes that come
out matter: it runs on two choices of sizes, and what varies like a size that goes in is that size.
"""

from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.graph.likeness import PLAIN, likeness
from fleetx.record.shapes import Shapes
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
        (one, kind), (other, same) = tree_flatten(few), tree_flatten(many)
        if kind != same:
            return None
        known = _known(shapes, given, first, second)
        leaves = [_joined(shapes, a, b, known) for a, b in zip(one, other, strict=True)]
        return tree_unflatten(leaves, kind)
    return None


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


def _run(shapes: Shapes, module: nn.Module, given: Any, sizes: Sizes) -> Any | None:
    """One call on the meta device; None if it did more than to return something new."""

    def concrete(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            fake = leaf.fake if isinstance(leaf, Variable) else leaf
            shape = [shapes.number(size, sizes) for size in fake.shape]
            made = torch.empty(shape, dtype=fake.dtype, device="meta")
            return made.requires_grad_(fake.requires_grad)
        return shapes.number(leaf, sizes) if isinstance(leaf, torch.SymInt) else leaf

    # A layer may draw on the CPU whether to run, and draws again when it really does.
    with torch.random.fork_rng(devices=[]), without_torch_function(), as_if_compiling():
        args, kwargs = tree_map(concrete, given)
        named = (*module.named_parameters(), *module.named_buffers())
        state = {
            name: torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
            for name, tensor in named
        }
        before = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        versions = [version_of(tensor) for tensor in before]
        found = torch.func.functional_call(module, state, args, kwargs)
    made = [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
    held = {storage_number(tensor) for tensor in (*before, *state.values())}
    own = [storage_number(tensor) for tensor in made]
    apart = held.isdisjoint(own) and len({*own}) == len(own)
    return found if apart and versions == [version_of(tensor) for tensor in before] else None


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

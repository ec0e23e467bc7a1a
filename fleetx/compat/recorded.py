"""Writing into the program that is recorded now what no variable leads there."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fleetx.compat import after_updates, modes
from fleetx.record.recorder import emit
from fleetx.record.size_nodes import measure
from fleetx.record.variable import Variable, variables
from fleetx.static.record.current import default_main_program, record_by_default
from fleetx.torch_internals import without_torch_function


def settle(*inputs: Any) -> bool:
    """Whether a layer writes a program: Paddle 1 did unless told otherwise, as inputs show."""
    if not modes.is_static() and not modes.in_dygraph_mode():
        tensors = [value for value in inputs if isinstance(value, Tensor)]
        if not tensors or any(isinstance(value, Variable) for value in tensors):
            modes.enable_static()
    return modes.is_static()


def made(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function that may meet no variable gives: an operator, in static mode."""
    if not modes.is_static():
        return func(*args, **kwargs)
    record_by_default()
    return default_main_program().record(func, args, kwargs)


BY_NUMBERS = "by_numbers"
"""Noted of operators whose Python code decides by numbers, which no file of a model can hold."""


def operator(
    func: Callable[..., Any], *args: Any, like: Any, by_numbers: bool = False, **kwargs: Any
) -> Any:
    """A function that is no torch function as one operator, in static mode.

    Args:
        func: runs with tensors in place of variables.
        args: of the function.
        like: what it gives: fake tensors of the shapes and formats, made by the caller.
        by_numbers: whether the function decides by numbers, such as the longest length.
        kwargs: of the function.
    """
    if not modes.is_static():
        return func(*args, **kwargs)
    record_by_default()
    program, noted = default_main_program(), {BY_NUMBERS: True} if by_numbers else {}
    found = emit(program, "call_function", func, args, kwargs, found=like, **noted)
    for variable in variables(found):
        measure(program, variable.node)
    return found


def fake(shape: Iterable[Any], dtype: torch.dtype, *, like: Any = ()) -> Tensor:
    """Stands for a result of this shape while a program is recorded.

    Args:
        shape: the sizes; None for one that the operator finds when it runs.
        dtype: the format of the numbers.
        like: tensors that it is computed from: it has a gradient if one of them has.
    """
    shapes = default_main_program().shapes
    sizes = [shapes.unknown(at) if size is None else size for at, size in enumerate(shape)]
    with without_torch_function(), shapes.mode:
        found = torch.empty(sizes, dtype=dtype)
    grows = dtype.is_floating_point and any(v.fake.requires_grad for v in variables(like))
    return found.requires_grad_(grows)


def _free(size: Any) -> bool:
    return isinstance(size, torch.SymInt)


def _guess(size: Any) -> int:
    """The number that stands for a size while a program is written."""
    return int(size.node.hint) if _free(size) else int(size)


def _unlike(size: Any, other: Any) -> bool:
    """Whether two free sizes cannot be taken for one, though a run may well find them equal."""
    return _free(size) and _free(other) and _guess(size) != _guess(other)


def agreed(x: Any, y: Any, behind: int = 0) -> Any:
    """The second of two tensors that meet, with the free sizes of the first.

    Paddle takes free sizes for equal until a run, such as those of tokens and of their labels.
    As many last dimensions as ``behind`` says stay as they are.
    """
    if not isinstance(x, Variable) or not isinstance(y, Variable):
        return y
    mine, sizes = list(x.fake.shape), list(y.fake.shape)
    count = min(len(mine), len(sizes))
    changed = [at for at in range(behind + 1, count + 1) if _unlike(mine[-at], sizes[-at])]
    for at in changed:
        sizes[-at] = mine[-at]
    return _as(y, sizes, same) if changed else y


def same(x: Tensor) -> Tensor:
    """The tensor itself, which a program takes for one of other free sizes."""
    return x


def _as(x: Variable, sizes: list[Any], func: Callable[..., Any], *args: Any) -> Any:
    like = fake(sizes, x.fake.dtype)
    if x.fake.requires_grad:
        like.requires_grad_(True)
    return emit(x.program, "call_function", func, (x, *args), {}, found=like)


PARTS = "of_parts"
"""Noted of a variable that is whole here, where Paddle's workers have as many parts of it."""


def check_parts(x: Any, sizes: Sequence[Any]) -> None:
    """Refuse to cut a whole row by a count that a script means for its part of the row."""
    parts = vars(x).get(PARTS, 1) if isinstance(x, Variable) else 1
    last = list(sizes)[-2:]
    if parts == 1 or not all(isinstance(size, int) and size > 0 for size in last):
        return
    if len(last) == 2 and last[0] * last[1] == x.fake.shape[-1]:
        raise NotImplementedError(
            f"reshape(…, {last}) of what paddle.distributed.split(axis=1, gather_out=False) gave: "
            f"in programs here every worker has the whole row, not one of {parts} parts, and a "
            "count of heads for one part would mix heads. Write the count as -1, [0, 0, -1, "
            f"{last[1] // parts}], or train eagerly with ColumnParallelLinear."
        )


def reshaped(x: Any, sizes: list[Any]) -> Any:
    """Other sizes, of which one may be -1, also where a free size decides whether that fits."""
    check_parts(x, sizes)
    if not isinstance(x, Variable) or -1 not in [s for s in sizes if isinstance(s, int)]:
        return torch.reshape(x, sizes)
    known, total = 1, 1
    for size in sizes:
        known = known if isinstance(size, int) and size == -1 else known * size
    for size in x.fake.shape:
        total = total * size
    if not _free(total) or _free(known) or _guess(total) % known == 0:
        return torch.reshape(x, sizes)
    found = [total // known if isinstance(s, int) and s == -1 else s for s in sizes]
    return _as(x, found, torch.reshape, tuple(sizes))


_choices: list[Any] = []
"""Conditions under which what a script assigns now is assigned."""


@contextmanager
def only_if(condition: Any) -> Iterator[None]:
    """Let assignments inside happen only where a condition is true when the program runs."""
    _choices.append(condition)
    try:
        yield
    finally:
        _choices.pop()


_noted: list[dict[int, tuple[Variable, Any]]] = []


@contextmanager
def noted_rebinds() -> Iterator[dict[int, tuple[Variable, Any]]]:
    """Which variables are assigned inside, with the nodes that they had before."""
    _noted.append({})
    try:
        yield _noted[-1]
    finally:
        _noted.pop()


def in_loop() -> bool:
    """Whether the operators of a round are written, which a run repeats."""
    return bool(_noted)


def rebind(output: Any, value: Any) -> Any:
    """Let an object that a script holds have another value from here on."""
    if not isinstance(output, Variable):
        with torch.no_grad():
            output.copy_(value)
        return output
    for chosen in _choices:
        value = torch.where(chosen, value, output)
    if _noted:
        _noted[-1].setdefault(id(output), (output, output.node))
    holder = vars(output)
    home = holder.get("home")
    if home is None and output.program.parameter(output.node) is not None:
        home = holder["home"] = output.node
    if home is not None and after_updates.comes_after(output.program, home, value):
        after_updates.assign(output.program, home, _as_variable(value, output).node)
        return output
    if home is not None and not _noted:
        _write_back(output, home, value)
    fresh = torch.clone(value) if home is not None or _named(value) else value
    if isinstance(fresh, Variable):
        _take_name(output, fresh)
        holder.update(node=fresh.node, fake=fresh.fake)
    return output


def _as_variable(value: Any, output: Variable) -> Variable:
    if isinstance(value, Variable):
        return value
    found: Variable = torch.zeros_like(output) + value
    return found


def _take_name(output: Variable, fresh: Variable) -> None:
    """A name that a script gave means the newest value."""
    program, before = output.program, output.node
    if before.op == "get_attr" or "name" in before.meta:
        name = program.name_of(before)
        before.meta.pop("name", None)
        fresh.node.meta["name"] = name
        program.names[name] = fresh.node
        program.changed()


def _named(value: Any) -> bool:
    return isinstance(value, Variable) and value.node.op in {"placeholder", "get_attr"}


def _write_back(output: Variable, home: Any, value: Any) -> None:
    """A persistable variable begins the next run with what it has now."""
    stored = Variable(home.meta["val"], home, output.program)
    output.program.record(Tensor.copy_, (stored, torch.detach(value)), {})


def sizes_of(shape: Any) -> list[Any]:
    """Sizes as numbers: some may be variables that say a size, as ``layers.shape(x)[0]`` does."""
    if isinstance(shape, Variable):
        return list(_said(shape))
    if isinstance(shape, Tensor):
        return [int(size) for size in torch.flatten(shape).tolist()]
    given = shape if isinstance(shape, (list, tuple)) else [shape]
    return [_size(entry) for entry in given]


def _size(entry: Any) -> Any:
    if isinstance(entry, Variable):
        found = list(_said(entry))
        return found[0] if len(found) == 1 else found
    if isinstance(entry, Tensor):
        return int(entry.item())
    return entry if isinstance(entry, torch.SymInt) else int(entry)


def say(variable: Any, sizes: Any) -> Any:
    """Note that a variable's numbers are these sizes."""
    if isinstance(variable, Variable):
        variable.node.meta["sizes"] = tuple(sizes)
    return variable


def _said(variable: Variable) -> Any:
    """The sizes that a variable's numbers are, through indexing and casts."""
    node = variable.node
    if "sizes" in node.meta:
        return node.meta["sizes"]
    before = node.args[0] if node.args else None
    if isinstance(before, torch.fx.Node):
        sizes = _said(Variable(before.meta["val"], before, variable.program))
        at = node.args[1] if len(node.args) > 1 else None
        if node.target == "__getitem__" and isinstance(at, (int, slice)):
            return sizes[at] if isinstance(at, slice) else (sizes[at],)
        if variable.fake.numel() == len(sizes):
            return sizes
    raise TypeError(
        f"a size is given by {variable.name!r}, whose numbers are not known while a program is "
        "written; give a number, -1 for one size, or layers.shape(x)[i]."
    )

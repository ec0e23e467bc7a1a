"""Records of different lengths: all rows one behind the other, and where each record begins.

An input ``x`` with a ``lod_level`` has a companion ``x_offsets``, which is fed with it.
"""

import keyword
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import fx

from fleetx.compat.recorded import fake, operator
from fleetx.record.error import ProgramError
from fleetx.record.program_graph import ProgramGraph
from fleetx.record.variable import Variable
from fleetx.static.record.inputs import TAKEN, data
from fleetx.static.record.program import Program
from fleetx.static.run.slot_feeds import OFFSETS


def input_name(name: str) -> str:
    """The name of an input here: that of the script, made one that Python code can have."""
    if name.isidentifier() and not keyword.iskeyword(name) and name not in TAKEN:
        return name
    return "input_" + re.sub(r"\W", "_", name)


def companion(name: str) -> str:
    """The name of the input that says where records of an input begin."""
    return f"{name}{OFFSETS}"


_NESTED = "nested_lod"
"""Noted of inputs whose records lie in records."""


class _Placeholders:
    """Sizes that a script declared and feeds others for, as Paddle 1 lets pass."""

    def __init__(self) -> None:
        self.sizes: set[int] = set()


def fed_sizes(program: ProgramGraph, shape: list[int | None], level: int) -> list[int | None]:
    """The sizes of an input, None for those that come with the data.

    Whoever declares nested records as one padded tensor, [-1, longest, 1] with ``lod_level=2``,
    feeds as many columns as a batch needs, here and in inputs beside it.
    """
    kept = program.attachments.setdefault(_Placeholders, _Placeholders())
    if level > 1:
        kept.sizes |= {size for size in shape[1:] if size is not None and size > 1}
    return [None if at and size in kept.sizes else size for at, size in enumerate(shape)]


def with_lod(variable: Variable, level: int) -> Variable:
    """Give an input its companion; one of nested records has none, and is a plain tensor."""
    if level > 1:
        variable.node.meta[_NESTED] = level
    elif level:
        offsets = data(companion(variable.name), [None], "int64")
        variable.node.meta["lod"] = offsets.node
    return variable


def set_lod(variable: Any, offsets: Any) -> Any:
    """Say where records of a variable begin."""
    if isinstance(variable, Variable):
        variable.node.meta["lod"] = offsets.node
    else:
        vars(variable)["lod_offsets"] = offsets
    return variable


def has_lod(variable: Any) -> bool:
    """Whether it is known where the records of a variable begin."""
    if isinstance(variable, Variable):
        return _found(variable.program, variable.node) is not None
    return "lod_offsets" in vars(variable)


def offsets_of(variable: Any, call: str) -> Any:
    """Where the records of a variable begin."""
    if not isinstance(variable, Variable):
        if "lod_offsets" in vars(variable):
            return vars(variable)["lod_offsets"]
    elif (node := _found(variable.program, variable.node)) is not None:
        return Variable(node.meta["val"], node, variable.program)
    else:
        _refuse_nested(variable, call)
    raise ValueError(
        f"{call}() works on records of different lengths, and its input comes from no data() with "
        "lod_level=1; declare it so, and feed a LoDTensor or lists."
    )


def _refuse_nested(variable: Variable, call: str) -> None:
    for node in _ancestors(variable.node):
        if level := node.meta.get(_NESTED):
            name = variable.program.name_of(node)
            raise ValueError(
                f"{call}() meets data({name!r}, lod_level={level}), whose records lie in records, "
                "and sequence operators here know one level; flatten the outer one, and use "
                "lod_level=1."
            )


def begins(program: Program, fetch: Any) -> Variable | None:
    """Where the records of something that is fetched begin; None if it has none."""
    try:
        node = program.find(fetch)
    except (ProgramError, TypeError):
        return None
    lod = _found(program, node) if _rows(node) is not None else None
    lod = program.descent.get(lod, lod) if lod is not None else None
    if lod is None or lod.graph is not program.graph:
        return None
    return Variable(lod.meta["val"], lod, program)


def _found(program: ProgramGraph, node: fx.Node) -> fx.Node | None:
    """The offsets of the nearest input that has as many rows, by what its size is."""
    rows = _rows(node)
    for before in _ancestors(node):
        lod = before.meta.get("lod")
        if lod is not None and (before is node or rows is None or _rows(before) == rows):
            return lod if isinstance(lod, fx.Node) else None
    return None


def _rows(node: fx.Node) -> Any:
    value: Any = node.meta.get("val")
    known = isinstance(value, torch.Tensor) and value.dim() > 0
    size = value.shape[0] if known else None
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _ancestors(node: fx.Node) -> Iterator[fx.Node]:
    seen: set[fx.Node] = set()
    queue = [node]
    while queue:
        at = queue.pop(0)
        if at not in seen:
            seen.add(at)
            yield at
            queue.extend(at.all_input_nodes)


def expanded(program: Program, feed: Mapping[str, Any]) -> dict[str, Any]:
    """A feed in which records of different lengths are rows, and where each begins."""
    inputs = program.inputs()
    found: dict[str, Any] = {}
    for given, value in feed.items():
        name = given if given in inputs else input_name(given)
        lengths = _lengths(value)
        if companion(name) in inputs and companion(name) not in feed and lengths is not None:
            begins = np.cumsum([0, *lengths[:-1]]) if len(lengths) else np.zeros(0)
            found[companion(name)] = begins.astype("int64")
            found[name] = _flat(value, inputs[name])
        else:
            found[name] = value
    return found


def _lengths(value: Any) -> list[int] | None:
    if hasattr(value, "recursive_sequence_lengths"):
        lengths = value.recursive_sequence_lengths()
        return [int(length) for length in lengths[-1]] if lengths else None
    if isinstance(value, (list, tuple)) and all(np.ndim(row) > 0 for row in value):
        return [len(row) for row in value]
    return None


def _flat(value: Any, node: fx.Node) -> Any:
    dtype = torch.empty(0, dtype=node.meta["val"].dtype).numpy().dtype
    if isinstance(value, (list, tuple)):
        rows = [np.asarray(row, dtype).reshape(len(row), -1) for row in value]
        value = np.concatenate(rows) if rows else np.zeros((0, 1), dtype)
    sizes = [-1 if size in {None, -1} else size for size in node.meta["shape"][1:]]
    array = np.asarray(value).astype(dtype, copy=False)
    return array.reshape(-1, *sizes) if -1 not in sizes else array


def side_by_side(x: Any, call: str) -> tuple[Any, Any, Any]:
    """Records of a variable as [steps, records, …], their lengths, and where they begin."""
    begins = offsets_of(x, call)
    if not isinstance(x, Variable):
        return *_padded(x, begins), begins
    rows = list(x.fake.shape)[1:]
    count = begins.fake.shape[0]
    likes = fake([None, count, *rows], x.fake.dtype, like=x), fake([count], torch.int64)
    padded, lengths = operator(_padded, x, begins, like=likes, by_numbers=True)
    return padded, lengths, begins


def _padded(x: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ends = torch.cat([begins[1:], begins.new_tensor([len(x)])])
    lengths = ends - begins
    longest = int(lengths.max()) if len(lengths) else 0
    steps = torch.arange(longest, device=x.device)[:, None]
    there = steps < lengths
    at = torch.where(there, begins + steps, 0)
    if not len(x):
        return x.new_zeros([longest, len(begins), *x.shape[1:]]), lengths
    mask = there.reshape(*there.shape, *[1] * (x.dim() - 1))
    return torch.where(mask, x[at], torch.zeros((), dtype=x.dtype, device=x.device)), lengths


def one_behind_the_other(padded: Any, like: Any, begins: Any) -> Any:
    """Rows of [steps, records, …] as those of a variable lie, which has the same records."""
    if not isinstance(padded, Variable):
        return set_lod(_rows_of(padded, like, begins), begins)
    sizes = [like.fake.shape[0], *list(padded.fake.shape)[2:]]
    found = fake(sizes, padded.fake.dtype, like=padded)
    return set_lod(operator(_rows_of, padded, like, begins, like=found), begins)


def _rows_of(padded: torch.Tensor, like: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    places = torch.arange(len(like), device=padded.device)
    owners = torch.searchsorted(begins, places, right=True) - 1
    return padded[places - begins[owners], owners]

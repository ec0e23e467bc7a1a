"""Layers that look rows of a table up."""

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor, nn

from fleetx.api.servers import has_servers
from fleetx.nn import SparseEmbedding
from fleetx.ps.tables.entries import Entry, ShowClickEntry
from fleetx.ps.tables.initializers import Initializer as Rows
from fleetx.ps.tables.rules import Rule
from fleetx.record.error import ProgramError
from fleetx.record.variable import Variable, as_variable
from fleetx.static.layers.parameters import Attr, ParamAttr, layer, one_of
from fleetx.static.record.current import default_startup_program
from fleetx.static.record.program import program_of


def embedding(
    input: Tensor,
    size: tuple[int, int] | Sequence[int],
    *,
    is_sparse: bool = False,
    padding_idx: int | None = None,
    param_attr: Attr = None,
    weight_attr: Attr = None,
    name: str | None = None,
) -> Variable:
    """One row of a table for each id; ``is_sparse`` makes gradients of the rows that were used."""
    rows, width = size
    module = layer(
        "embedding",
        lambda: nn.Embedding(rows, width, padding_idx=padding_idx, sparse=is_sparse),
        name=name,
        weight=one_of(param_attr=param_attr, weight_attr=weight_attr),
    )
    return as_variable(module(input), "a layer")


def sparse_embedding(
    input: Tensor,
    size: tuple[int, int] | Sequence[int],
    *,
    padding_idx: int | None = None,
    is_test: bool = False,
    entry: Entry | None = None,
    param_attr: Attr | Rows = None,
    weight_attr: Attr | Rows = None,
    name: str | None = None,
    wire: str | None = None,
    rule: Rule | None = None,
    storage: str = "memory",
    memory: str | int | None = None,
    dtype: str = "float32",
) -> Variable:
    """A large table of which a batch touches few rows.

    In a job with parameter servers it lives there under the name of the layer, like that of
    ``fleetx.nn.SparseEmbedding``. Elsewhere it is a table of this process with sparse gradients,
    for optimizers that take them: SGD, Adagrad, SparseAdam.

    Args:
        input: ids; on servers any whole numbers, else those below ``size[0]``.
        size: rows and numbers in a row; servers make rows as they are met and ignore the first.
        padding_idx: an id whose row is zero and stays so.
        is_test: look rows up, but do not train them.
        entry: which ids get a row on servers: ``CountFilterEntry`` or ``ProbabilityEntry`` of
            ``fleetx.nn``; or ``ShowClickEntry``, which names the inputs that it counts, of a number
            for each example or each id.
        param_attr: what rows begin with; on servers ``Uniform``, ``Normal`` or ``Constant`` of
            ``fleetx.nn``.
        weight_attr: another name of ``param_attr``.
        name: of the layer and of its table.
        wire: how rows travel from and to servers: "float16", "bfloat16", or float32 if None.
        rule: how rows move on servers: ``SGD``, ``Adagrad`` or ``Adam`` of ``fleetx.nn``, with a
            learning rate of its own; the program's optimizer if None.
        storage: "disk" keeps rows that are seldom used on the servers' disks.
        memory: what each server may take for the others then, as in "8GB".
        dtype: "float16", "bfloat16" or "int8" keeps rows in fewer bytes on the servers.
    """
    start = one_of(param_attr=param_attr, weight_attr=weight_attr)
    more = _Kept(wire=wire, rule=rule, storage=storage, memory=memory, dtype=dtype)
    if has_servers():
        return served_embedding(input, size[1], padding_idx, is_test, entry, start, name, more)
    module = _local(size, padding_idx, _unserved(entry, start, more), name)
    return _rows(module, input, is_test)


class _Kept(TypedDict, total=False):
    """How rows are moved, sent and kept on servers, as ``SparseEmbedding`` takes it."""

    wire: str | None
    rule: Rule | None
    storage: str
    memory: str | int | None
    dtype: str


_AS_EVER = _Kept(wire=None, rule=None, storage="memory", memory=None, dtype="float32")


def served_embedding(  # noqa: PLR0917
    input: Tensor,
    width: int,
    padding_idx: int | None = None,
    is_test: bool = False,
    entry: Entry | None = None,
    start: Attr | Rows = None,
    name: str | None = None,
    more: _Kept = _AS_EVER,
) -> Variable:
    """Rows of a table that lives on servers, which may be met after the program is written."""
    counted = _counted(entry, input) if isinstance(entry, ShowClickEntry) else {}
    module = _served(width, padding_idx, entry, start, name, more)
    return _rows(module, input, is_test, **counted)


def _rows(module: nn.Module, input: Tensor, is_test: bool, **counted: Tensor) -> Variable:
    with torch.set_grad_enabled(torch.is_grad_enabled() and not is_test):
        return as_variable(module(input, **counted), "a layer")


def _counted(entry: ShowClickEntry, ids: Tensor) -> dict[str, Tensor]:
    """The inputs that the entry names, one number for each id."""
    program = program_of(as_variable(ids, "an input"))
    found = {"show": entry.show_name, "click": entry.click_name}
    if missing := [name for name in found.values() if name not in program.inputs()]:
        raise ProgramError(
            f"ShowClickEntry({entry.show_name!r}, {entry.click_name!r}) counts what is fed under "
            f"these names, and the program has no input {missing[0]!r}; declare "
            f"static.data({missing[0]!r}, [None, 1], 'float32') before the layer, or name the "
            "inputs that it has."
        )
    return {kind: program.var(name).expand(ids.shape) for kind, name in found.items()}


def _served(  # noqa: PLR0917
    width: int,
    padding_idx: int | None,
    entry: Entry | None,
    start: Attr | Rows,
    name: str | None,
    more: _Kept,
) -> nn.Module:
    startup = default_startup_program()
    name = name or startup.layer_names.unique("sparse_embedding", startup.initial)
    first = _first_rows(name, start)

    def make() -> nn.Module:
        return SparseEmbedding(
            width,
            name=name,
            initializer=first,
            entry=entry,
            padding_idx=padding_idx,
            **more,
        )

    return layer("sparse_embedding", make, name=name)


def _first_rows(name: str, start: Attr | Rows) -> Rows | None:
    given = start.initializer if isinstance(start, ParamAttr) else start
    if given is None or isinstance(given, Rows):
        return given
    raise ProgramError(
        f"param_attr of sparse_embedding {name!r} fills a tensor, but its rows live on parameter "
        "servers and begin one by one, by their ids; pass Uniform, Normal or Constant of fleetx.nn."
    )


def _unserved(entry: Entry | None, start: Attr | Rows, more: _Kept) -> Attr:
    if isinstance(start, Rows) or entry is not None or more != _AS_EVER:
        raise ProgramError(
            "sparse_embedding() got an entry, a wire, a rule, a storage, a dtype or rows of "
            "fleetx.nn, which parameter servers know, and this job has none; start it with "
            "fleetrun --server_num 1 "
            "--worker_num 2, and call fleet.init() before the layers."
        )
    return start


def _local(
    size: Sequence[int], padding_idx: int | None, start: Attr, name: str | None
) -> nn.Module:
    rows, width = size
    return layer(
        "embedding",
        lambda: nn.Embedding(rows, width, padding_idx=padding_idx, sparse=True),
        name=name,
        weight=start,
    )

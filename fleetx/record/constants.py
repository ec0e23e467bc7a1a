"""Values of Python that the text of a program cannot say, as operators that give them."""

import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from types import BuiltinMethodType, EllipsisType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from fleetx.record.error import ProgramError
from fleetx.record.program_graph import ProgramGraph
from fleetx.record.source_lines import user_line
from fleetx.torch_internals import OpOverload, graph_root

_TEXT = frozenset(
    {NoneType, EllipsisType, bool, int, float, complex, str, bytes, range}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format, OpOverload}
)
"""Types whose text means the value again. Of their subclasses it need not: ``np.float64``."""


def as_text_or_node(program: ProgramGraph, value: Any) -> Any:
    """A value that a line of code can spell, or a node that gives it."""
    if type(value) in _TEXT or isinstance(value, Enum):
        return value
    found = next(_tensors(value, depth=4), None)
    if found is not None:
        name = getattr(value, "__qualname__", type(value).__name__)
        raise ProgramError(
            f"{user_line()}: the argument {name} holds a {type(found).__name__}, which the program "
            "would neither see, train nor place on a device; pass the tensors themselves as "
            "arguments, or call the module in forward()."
        )
    # As it is now, like every number of the script: arrays are often written again.
    kept = value.copy() if isinstance(value, np.ndarray) else program.kept_object(value)
    return _node(program, kept)


def with_positions(index: Any) -> Any:
    """An index with numpy's masks as the positions that they choose, whose number is known."""
    given = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(part, np.ndarray) and part.dtype == bool for part in given):
        return index
    positions = (
        part.nonzero() if isinstance(part, np.ndarray) and part.dtype == bool else (part,)
        for part in given
    )
    return tuple(position for parts in positions for position in parts)


def _node(program: ProgramGraph, value: Any) -> fx.Node:
    """At the beginning, and made again in whatever part needs it, like a size."""

    def constant() -> Any:
        return value

    graph = program.graph
    with graph.inserting_before(next(iter(graph.nodes), graph_root(graph))):
        node = graph.call_function(constant)
    node.meta["size"] = True
    return node


def _tensors(value: Any, depth: int) -> Iterator[Tensor | nn.Module]:
    """Tensors and modules that a function or an object of the user's refers to."""
    if isinstance(value, Tensor) or (isinstance(value, nn.Module) and _stateful(value)):
        yield value
    elif depth and not isinstance(value, (type, ModuleType, np.ndarray, np.generic)):
        for inner in _referred(value):
            yield from _tensors(inner, depth - 1)


def _stateful(module: nn.Module) -> bool:
    return any(True for _ in (*module.parameters(), *module.buffers()))


def _referred(value: Any) -> list[Any]:
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, (MethodType, BuiltinMethodType)):
        return [value.__self__, getattr(value, "__func__", None)]
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    return list(vars(value).values()) if hasattr(value, "__dict__") else []


def _of_function(function: Callable[..., Any]) -> list[Any]:
    if function.__module__.partition(".")[0] == "torch":
        return []
    try:
        found = inspect.getclosurevars(function)
    except ValueError:  # a name that gets its value later
        return []
    return [*found.nonlocals.values(), *found.globals.values()]

"""Values of Python that the text of a program cannot say, as operators that give them."""

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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


def spell_nested(graph: fx.Graph) -> None:
    """Put operators for named tuples and enums, which fx spells in some places of an argument only.

    In 2.11 it does not know the class of one that is returned, and in no version yet that of one
    in a dict or in another named tuple.
    """
    for node in list(graph.nodes):
        if not all(map(_is_spelled, (node.args, node.kwargs))):
            with graph.inserting_before(node):
                args, kwargs = (_spelled(node, given) for given in (node.args, node.kwargs))
            node.args, node.kwargs = args, kwargs


def _is_spelled(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_spelled, (*value, *value.values())))
    if isinstance(value, tuple | list):
        return not hasattr(value, "_fields") and all(map(_is_spelled, value))
    return not isinstance(value, Enum)


def _spelled(node: fx.Node, value: Any) -> Any:
    """The same with operators, where the node's own are in force, for what fx does not spell."""
    if isinstance(value, dict):
        items = [_spelled(node, item) for item in value.values()]
        if all(map(_is_spelled, value)):
            return dict(zip(value, items, strict=True))
        keys = tuple(value)
        return _operator(node, lambda *items: dict(zip(keys, items, strict=True)), items)
    if isinstance(value, tuple | list):
        items = [_spelled(node, item) for item in value]
        if hasattr(value, "_fields"):
            return _operator(node, type(value), items)
        return tuple(items) if isinstance(value, tuple) else items
    return _operator(node, lambda: value) if isinstance(value, Enum) else value


def _operator(node: fx.Node, made: Callable[..., Any], items: Sequence[Any] = ()) -> fx.Node:
    found = node.graph.call_function(made, tuple(items))
    found.meta.update({key: node.meta[key] for key in ("autocast", "grad") if key in node.meta})
    return found


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
    if isinstance(value, (list, tuple, set, frozenset, deque)):
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

"""Operators that a run repeats: those that a block wrote, taken out of a program."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx

from fleetx.graph.torch_functions import FACTORIES
from fleetx.record.program_graph import ProgramGraph
from fleetx.static.lower.flattening import in_tests

Values = dict[fx.Node, Any]


class Steps:
    """Operators in their order, as they were when the block ended."""

    def __init__(self, nodes: list[fx.Node]) -> None:
        for node in nodes:
            _check(node)
        own = set(nodes)
        # As they are now: what leaves a graph loses its arguments.
        self._steps = [(n, _function(n), n.args, n.kwargs) for n in nodes]
        self.used = list(
            dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in own)
        )
        """What comes from outside."""
        self.computed = own

    def run(self, known: Values, *, training: bool = True, device: Any = None) -> None:
        """Compute every operator, from values by their nodes, and add what they give."""
        for node, function, given, options in self._steps:
            args, kwargs = (
                (given, options) if training else in_tests(function, given, dict(options))
            )
            args, kwargs = fx.map_arg((args, kwargs), known.__getitem__)
            if device is not None and function in FACTORIES:
                kwargs = {**kwargs, "device": device}
            known[node] = function(*args, **kwargs)


def _function(node: fx.Node) -> Callable[..., Any]:
    target: Any = node.target
    found: Callable[..., Any] = getattr(Tensor, target) if node.op == "call_method" else target
    return found


def _check(node: fx.Node) -> None:
    if node.op not in {"call_function", "call_method"}:
        raise NotImplementedError(
            f"a block calls {node.target!r}, a layer that keeps statistics, and its rounds are "
            "counted by a run; write the loop in Python, or call it outside."
        )


def device_of(values: Iterable[Any]) -> torch.device | None:
    """Where a run computes: programs are written for the CPU."""
    return next((value.device for value in values if isinstance(value, Tensor)), None)


def behind(graph: fx.Graph, last: fx.Node | None) -> list[fx.Node]:
    """The operators that were written behind a node, sizes of what is fed excepted."""
    found: list[fx.Node] = []
    for node in reversed(graph.nodes):
        if node is last:
            break
        found.append(node)
    return [node for node in reversed(found) if node.op not in {"placeholder", "get_attr"}]


def last_of(graph: fx.Graph) -> fx.Node | None:
    """The last node of a graph."""
    return next(iter(reversed(graph.nodes)), None)


def taken_out(program: ProgramGraph, nodes: list[fx.Node]) -> None:
    """Let a program forget operators that one in their place repeats."""
    gone = set()
    for node in reversed(nodes):
        if not node.users:
            program.graph.erase_node(node)
            gone.add(node)
    program.names = {name: node for name, node in program.names.items() if node not in gone}
    program.sizes = {size: node for size, node in program.sizes.items() if node not in gone}
    program.changed()

"""Checkpoints inside of models as single operators, which backward replays."""

from collections.abc import Callable
from typing import Any

from torch import fx
from torch.utils.checkpoint import checkpoint

from fleetx.record.regions import Regions
from fleetx.record.replay import Replay
from fleetx.record.splitting import Piece, is_operator, split

ITSELF = "itself"
"""The attribute of a part of a program that is the part, for code that hands it on."""

_PREFIX = "replays"


def with_replays(
    graph: fx.Graph, depth: int, code: Callable[[fx.Graph, int], Callable[..., Any]]
) -> fx.Graph:
    """The graph with each checkpoint as one operator, which runs and replays it.

    Args:
        graph: the operators.
        depth: how many checkpoints are around it already.
        code: makes a function of the inside of a checkpoint, one deeper.
    """
    numbers, found = _numbered(graph, depth)
    if not found:
        return graph
    outer, pieces = split(graph, numbers, _PREFIX, lambda node, number: True)
    by_name = {node.name: node for node in outer.nodes}
    calls = [n for n in outer.nodes if str(n.target).startswith(f"{_PREFIX}.")]
    for call, piece, replay in zip(calls, pieces, found, strict=True):
        # One that is given and not used decides all the same whether there are gradients.
        used = {node.name for node in piece.inputs}
        unused = [by_name[n] for n in sorted(replay.given - used) if n in by_name]
        with outer.inserting_before(call):
            part = outer.get_attr(ITSELF)
        call.op, call.target = (
            "call_function",
            _running(piece, replay, code(piece.graph, depth + 1)),
        )
        call.args = (part, *call.args, *unused)
        call.meta["grad"] = any(node.meta.get("grad", True) for node in piece.nodes)
    return outer


def _numbered(graph: fx.Graph, depth: int) -> tuple[dict[fx.Node, int], list[Replay]]:
    """Node -> the number of its checkpoint, and the checkpoints; a cut may make two of one."""
    numbers: dict[fx.Node, int] = {}
    found: list[Replay] = []
    inside = False
    for node in filter(is_operator, graph.nodes):
        around = node.meta.get(_PREFIX, ())[depth:]
        if around and not (inside and found[-1] is around[0]):
            found.append(around[0])
        inside = bool(around)
        if inside:
            numbers[node] = len(found) - 1
    return numbers, found


def _running(piece: Piece, replay: Replay, code: Callable[..., Any]) -> Callable[..., Any]:
    count = len(piece.inputs)
    given = [at for at, node in enumerate(piece.inputs) if node.name in replay.given]

    def replayed(part: Any, *inputs: Any) -> Any:
        held, own = list(inputs[:count]), [inputs[at] for at in given]
        for at in given:
            held[at] = None

        def run(*values: Any) -> Any:
            merged = list(held)
            for at, value in zip(given, values, strict=False):
                merged[at] = value
            with Regions():  # torch ends a replay by raising as soon as it has what it needs
                return code(part, *merged)

        return checkpoint(run, *own, *inputs[count:], **replay.options)

    return replayed

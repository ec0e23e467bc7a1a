"""Cutting a graph into parts that become modules: segments between names, stages by device."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import fx


@dataclass
class Piece:
    """One part: its own graph, and the path under which the outer graph calls it."""

    path: str
    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: list[fx.Node] = field(default_factory=list)
    """Nodes of the whole graph that it takes."""
    outputs: list[fx.Node] = field(default_factory=list)
    """Nodes of the whole graph that it gives."""


def numbered_by_names(graph: fx.Graph, ends: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """Node -> the number of the segment that it lies in; nodes behind the last end have none.

    A segment goes up to and with the node at which it is cut; what is left behind the last one is
    part of no segment.
    """
    order = {node: at for at, node in enumerate(graph.nodes)}
    borders = sorted({order[_first(end)] for end in ends})
    found: dict[fx.Node, int] = {}
    for node in graph.nodes:
        number = sum(border < order[_first(node)] for border in borders)
        if _is_operator(node) and number < len(borders):
            found[node] = number
    return found


def _first(node: fx.Node) -> fx.Node:
    """Items of a tuple belong to the node that made it."""
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _is_operator(node: fx.Node) -> bool:
    """Sizes are computed again wherever they are needed."""
    return node.op.startswith("call") and not node.meta.get("size")


def numbered_by_device(graph: fx.Graph) -> tuple[dict[fx.Node, int], list[str]]:
    """Node -> the number of its stage, and the devices of the stages in order.

    What was recorded under no ``device_guard`` goes with what it stands behind.
    """
    devices: list[str] = []
    found: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if not _is_operator(node):
            continue
        device = node.meta.get("device")
        if device is not None and device not in devices:
            devices.append(device)
        found[node] = max(len(devices) - 1, 0) if device is None else devices.index(device)
    return found, devices


def split(
    graph: fx.Graph,
    numbers: Mapping[fx.Node, int],
    prefix: str,
    owned: Callable[[fx.Node, int], bool],
) -> tuple[fx.Graph, list[Piece]]:
    """Move numbered nodes into pieces; return the graph that calls these, and the pieces.

    Args:
        graph: ends in an output node.
        numbers: node -> piece; numbers must not decrease along the graph.
        prefix: pieces are called ``prefix.0``, ``prefix.1``, …
        owned: whether a parameter that a node reads may be read inside of that piece.
    """
    count = max(numbers.values(), default=-1) + 1
    pieces = [Piece(f"{prefix}.{number}") for number in range(count)]
    for number, piece in enumerate(pieces):
        _fill(piece, [n for n in graph.nodes if numbers.get(n) == number], number, numbers, owned)
    return _outer(graph, numbers, pieces), pieces


def _fill(
    piece: Piece,
    nodes: Sequence[fx.Node],
    number: int,
    numbers: Mapping[fx.Node, int],
    owned: Callable[[fx.Node, int], bool],
) -> None:
    inside: dict[fx.Node, fx.Node] = {}
    body = fx.Graph()

    def fetch(node: fx.Node) -> fx.Node:
        if node not in inside:
            if node.meta.get("size") or (node.op == "get_attr" and owned(node, number)):
                inside[node] = body.node_copy(node, fetch)
            else:
                piece.inputs.append(node)
                inside[node] = body.placeholder(node.name)
                inside[node].meta.update(node.meta)
        return inside[node]

    for node in nodes:
        if node not in inside:
            inside[node] = body.node_copy(node, fetch)
    piece.outputs = [n for n in nodes if any(numbers.get(user) != number for user in n.users)]
    body.output(tuple(inside[node] for node in piece.outputs))
    piece.graph = _inputs_first(body, [inside[node] for node in piece.inputs])


def _inputs_first(body: fx.Graph, inputs: Sequence[fx.Node]) -> fx.Graph:
    """The same graph with its inputs in this order, before everything else."""
    graph, mapped = fx.Graph(), dict[fx.Node, fx.Node]()
    rest = [node for node in body.nodes if node.op != "placeholder"]
    for node in (*inputs, *rest):
        mapped[node] = graph.node_copy(node, mapped.__getitem__)
    return graph


def _outer(graph: fx.Graph, numbers: Mapping[fx.Node, int], pieces: Sequence[Piece]) -> fx.Graph:
    """What calls the pieces, each where its last node stood."""
    outer, mapped = fx.Graph(), dict[fx.Node, fx.Node]()
    last = {number: node for node in graph.nodes if (number := numbers.get(node)) is not None}

    def fetch(node: fx.Node) -> fx.Node:
        if node not in mapped:  # a size or a parameter that stands further down
            mapped[node] = outer.node_copy(node, fetch)
        return mapped[node]

    for node in graph.nodes:
        number = numbers.get(node)
        if number is None:
            if node not in mapped:
                mapped[node] = outer.node_copy(node, fetch)
        elif node is last[number]:
            piece = pieces[number]
            called = outer.call_module(piece.path, tuple(fetch(n) for n in piece.inputs))
            for at, output in enumerate(piece.outputs):
                mapped[output] = outer.call_function(operator.getitem, (called, at))
    return outer

"""Cutting a graph into parts that become modules: segments between names, stages by device."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from torch import Tensor, fx

Owned = Callable[[fx.Node, int], bool]
"""Whether a parameter that a node reads may be read inside of the piece of that number."""


@dataclass
class Piece:
    """One part: its own graph, and the path under which the outer graph calls it."""

    path: str
    nodes: list[fx.Node]
    """Nodes of the whole graph that it runs."""
    inputs: list[fx.Node] = field(default_factory=list)
    """Nodes of the whole graph that it takes."""
    outputs: list[fx.Node] = field(default_factory=list)
    """Nodes of the whole graph that it gives."""
    shown: set[fx.Node] = field(default_factory=set)
    """Those of them that pieces behind it need for no gradient: they are results of the graph."""
    graph: fx.Graph = field(default_factory=fx.Graph)


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
        if is_operator(node) and number < len(borders):
            found[node] = number
    return found


def _first(node: fx.Node) -> fx.Node:
    """Items of a tuple belong to the node that made it."""
    while node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def is_operator(node: fx.Node) -> bool:
    """Sizes are computed again wherever they are needed."""
    return node.op.startswith("call") and not node.meta.get("size")


def numbered_by_device(graph: fx.Graph) -> tuple[dict[fx.Node, int], list[str]]:
    """Node -> the number of its stage, and the devices of the stages in order.

    What was recorded under no ``device_guard`` goes with what it stands behind.
    """
    devices: list[str] = []
    found: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if not is_operator(node):
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
    owned: Owned,
    *,
    chained: bool = False,
) -> tuple[fx.Graph, list[Piece]]:
    """Move numbered nodes into pieces; return the graph that calls these, and the pieces.

    Args:
        graph: ends in an output node.
        numbers: node -> piece; numbers must not decrease along the graph.
        prefix: pieces are called ``prefix.0``, ``prefix.1``, …
        owned: what a piece reads by itself.
        chained: let a piece take values of other pieces from the one before it alone, which
            passes on what it does not need itself; the last one gives all results of the graph.
    """
    count = max(numbers.values(), default=-1) + 1
    pieces = [
        Piece(f"{prefix}.{number}", [n for n in graph.nodes if numbers.get(n) == number])
        for number in range(count)
    ]
    outside = set(numbers.values()) if chained else {*numbers.values(), None}
    for number, piece in enumerate(pieces):
        piece.inputs = _taken(piece, number, numbers, owned)
        others = outside - {number}
        piece.outputs = [n for n in piece.nodes if any(numbers.get(u) in others for u in n.users)]
    if chained:
        _chain(pieces, numbers)
        _pass_results(pieces, [n for n in results(graph) if n in numbers], numbers)
    for number, piece in enumerate(pieces):
        piece.graph = _body(piece, number, owned)
    return _outer(graph, numbers, pieces), pieces


def _remade(node: fx.Node, number: int, owned: Owned) -> bool:
    """Whether a piece computes or reads this by itself instead of taking it."""
    return bool(node.meta.get("size")) or (node.op == "get_attr" and owned(node, number))


def _taken(
    piece: Piece, number: int, numbers: Mapping[fx.Node, int], owned: Owned
) -> list[fx.Node]:
    """What a piece needs from outside, in the order in which it meets it."""
    found: dict[fx.Node, None] = {}
    queue = [source for node in piece.nodes for source in node.all_input_nodes]
    while queue:
        node = queue.pop(0)
        if numbers.get(node) == number or node in found:
            continue
        if _remade(node, number, owned):
            queue += node.all_input_nodes
        else:
            found[node] = None
    return list(found)


def _chain(pieces: Sequence[Piece], numbers: Mapping[fx.Node, int]) -> None:
    for number in range(len(pieces) - 1, 1, -1):
        before = pieces[number - 1]
        for node in pieces[number].inputs:
            maker = numbers.get(node)
            if maker is not None and maker < number - 1:
                if node not in before.inputs:
                    before.inputs.append(node)
                before.outputs.append(node)


def results(graph: fx.Graph) -> list[fx.Node]:
    """What a graph returns, in order."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    found = output.args[0]
    assert isinstance(found, (tuple, list))
    return [node for node in found if isinstance(node, fx.Node)]


def _pass_results(
    pieces: Sequence[Piece], found: Sequence[fx.Node], numbers: Mapping[fx.Node, int]
) -> None:
    """Let results of earlier pieces travel to the last one, for others to see them."""
    for node in found:
        for before, after in pairwise(pieces[numbers[node] :]):
            if node not in before.outputs:
                before.outputs.append(node)
                before.shown.add(node)
            if node not in after.inputs:
                after.inputs.append(node)
        if node not in pieces[-1].outputs:
            pieces[-1].outputs.append(node)


def _body(piece: Piece, number: int, owned: Owned) -> fx.Graph:
    body, inside = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in piece.inputs:
        inside[node] = body.placeholder(node.name)
        inside[node].meta.update(node.meta)

    def fetch(node: fx.Node) -> fx.Node:
        if node not in inside:
            assert _remade(node, number, owned), f"{node} is not known in {piece.path}"
            inside[node] = body.node_copy(node, fetch)
        return inside[node]

    for node in piece.nodes:
        inside[node] = body.node_copy(node, fetch)
    for node in piece.shown:
        inside[node] = body.call_function(Tensor.detach, (inside[node],))
    body.output(tuple(inside[node] for node in piece.outputs))
    return body


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
                # What a piece only passes on is read from there by those behind it.
                mapped[output] = outer.call_function(operator.getitem, (called, at))
    return outer

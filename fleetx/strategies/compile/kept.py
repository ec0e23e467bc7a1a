"""What compiled code keeps for its backward, and what it computes again instead.

The rule is that of torch's partitioner, by which inductor's code is cut: of all sets of values from
which a backward can compute what it needs, the one with the fewest bytes, where products and all
that would be written out only to be read again by a product are not computed twice.
"""

from collections.abc import Iterator
from functools import lru_cache

from fleetx.strategies.compile.code import Code, Node
from fleetx.strategies.compile.kinds import Kind

FURTHER = 1.1
"""Torch's partitioner takes a value for so much larger, for each operator that lies between it and
the backward."""
MANY = 1024
"""Kinds of code that are remembered: blocks that a model repeats are alike."""
SMALLER = 4
"""A result that is so many times smaller than what it was made of is kept, not computed again."""


@lru_cache(MANY)
def kept(code: Code) -> frozenset[int]:
    """The values that wait for the backward; parameters do not count."""
    needed = {value for node in code.nodes for value in node.needs if node.wanted} - code.own
    if not needed:
        return frozenset()
    import networkx  # torch has it for this rule of its own; it takes a while to load

    graph = networkx.DiGraph()
    for node in code.nodes:
        for value in node.makes:
            for read in sources(node, value):
                graph.add_edge((read, "out"), (value, "in"))
    weights = _weights(code, needed)
    for value, size in enumerate(code.sizes):
        graph.add_edge((value, "in"), (value, "out"), capacity=0 if value in code.own else size)
        graph.edges[(value, "in"), (value, "out")]["capacity"] *= weights[value]
    for value in _once(code, needed):
        graph.add_edge("forward", (value, "in"))
    for value in needed:
        graph.add_edge((value, "out"), "backward")
    _, (before, _) = networkx.minimum_cut(graph, "forward", "backward")
    cut = (v for v in range(len(code.sizes)) if (v, "in") in before and (v, "out") not in before)
    return frozenset(cut) - code.own


def sources(node: Node, value: int) -> tuple[int, ...]:
    """From what a value is computed: results of rows follow from their figures, too."""
    return node.reads if value in node.figures else (*node.reads, *node.figures)


def _once(code: Code, needed: set[int]) -> Iterator[int]:
    """Values that are computed in the forward alone."""
    made = {value for node in code.nodes for value in node.makes}
    yield from (value for value in range(len(code.sizes)) if value not in made)
    for node in code.nodes:
        read = sum(code.sizes[value] for value in node.reads)
        for value in node.makes:
            is_small = node.kind is not Kind.SAMPLED and code.sizes[value] * SMALLER < read
            if node.kind in {Kind.ALONE, Kind.SAMPLED} or is_small or value in node.figures:
                yield value
    yield from (v for node in code.nodes if _is_alone(node) for v in node.needs if v in made)
    yield from _far_apart(code)


def _is_alone(node: Node) -> bool:
    return node.kind is Kind.ALONE and bool(node.wanted)


def _far_apart(code: Code) -> Iterator[int]:
    """What is made of a value behind a product, which has read that value's neighbours before."""
    users = _users(code)
    fused = [node for node in code.nodes if node.kind not in {Kind.ALONE, Kind.SAMPLED}]
    for value in (value for node in fused for value in node.makes):
        readers = users.get(value, [])
        first = _first_alone(code, users, readers) if len(readers) > 1 else len(code.nodes)
        for at in readers:
            if at > first and code.nodes[at].kind is not Kind.ALONE:
                yield from code.nodes[at].makes


def _users(code: Code) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for at, node in enumerate(code.nodes):
        for value in node.reads:
            found.setdefault(value, []).append(at)
    return found


def _first_alone(code: Code, users: dict[int, list[int]], start: list[int]) -> int:
    """The first operator that is not fused, of all that follow up to the last of some."""
    most, todo, seen = max(start), set(start), set[int]()
    while todo:
        at = min(todo)
        todo.discard(at)
        seen.add(at)
        if code.nodes[at].kind is Kind.ALONE:
            return at
        after = {user for value in code.nodes[at].makes for user in users.get(value, ())}
        todo |= {user for user in after if user <= most} - seen
    return most


def _weights(code: Code, needed: set[int]) -> list[float]:
    """Of a byte of each value: more the further from the backward, and where it must be written."""
    distance = [100] * len(code.sizes)
    written = set(code.outputs)
    for value in needed:
        distance[value] = 1
    for node in reversed(code.nodes):
        near = min((distance[value] for value in node.makes), default=100) + 1
        for value in node.reads:
            distance[value] = min(distance[value], near, 100)
            if node.kind is Kind.ALONE:
                written.add(value)
    made = {value for node in code.nodes for value in node.makes}
    return [
        FURTHER**far * (1 if value in written or value not in made else 2)
        for value, far in enumerate(distance)
    ]

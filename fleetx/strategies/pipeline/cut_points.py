"""Where in a followed forward a part may begin."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch.fx import Graph, Node

from fleetx.record.writes import written
from fleetx.strategies.pipeline.node_kinds import is_free, sources


def starts(graph: Graph, points: Sequence[str]) -> list[int]:
    """The position of the first node of each named submodule; refuses what cannot be a cut."""
    found = [_start(graph, point) for point in points]
    for (point, at), (after, then) in pairwise(zip(points, found, strict=True)):
        if then < at:
            raise ValueError(
                f"the cut points are [..., {point!r}, {after!r}, ...], but the forward runs "
                f"{after!r} before {point!r}; name them in the order in which they run."
            )
    _check_not_empty(graph, points, found)
    _check_not_torn(graph, points, found)
    return found


def _start(graph: Graph, point: str) -> int:
    calls: dict[str, int] = {}
    """Call inside the point -> position of its first node."""
    for at, node in enumerate(graph.nodes):
        for call in _calls(node, point):
            calls.setdefault(call, at)
    if not calls:
        raise ValueError(f"{point!r} cannot begin a part: {_why_not(graph, point)}")
    first = min(calls, key=calls.__getitem__)
    if f"{first}@1" in calls:
        raise ValueError(
            f"{point!r} cannot begin a part, because the forward calls {first!r} more than once; "
            "name a submodule that runs once."
        )
    return calls[first]


def _calls(node: Node, point: str) -> Iterator[str]:
    """The calls of ``point``, or of something below it, in which a node runs."""
    if node.op.startswith("call_"):
        for call, (path, _) in node.meta.get("nn_module_stack", {}).items():
            if path == point or path.startswith(f"{point}."):
                yield call


def _why_not(graph: Graph, point: str) -> str:
    for node in graph.nodes:
        if node.op == "call_module" and point.startswith(f"{node.target}."):
            return (
                f"it lies inside {node.target!r}, which is followed as a whole; name that one, or "
                "a submodule outside of it."
            )
    known = list(dict.fromkeys(str(n.target) for n in graph.nodes if n.op == "call_module"))
    some = ", ".join(map(repr, known[:8])) + (", ..." if len(known) > 8 else "")
    return f"the forward calls no such submodule; it calls {some or 'none at all'}."


def _check_not_empty(graph: Graph, points: Sequence[str], found: Sequence[int]) -> None:
    nodes = list(graph.nodes)
    for point, begin, end in zip(points, [0, *found], found, strict=False):
        if all(is_free(node) for node in nodes[begin:end]):
            raise ValueError(
                f"nothing would run in the part before {point!r}; leave that cut point out."
            )


def _check_not_torn(graph: Graph, points: Sequence[str], found: Sequence[int]) -> None:
    for torn in torn_by_cuts(graph):
        for point, at in zip(points, found, strict=True):
            if torn.first < at <= torn.last:
                raise ValueError(
                    f"{point!r} cannot begin a part, because {torn.name!r} after it changes in "
                    "place a value that is made before it; begin the part earlier or later, or "
                    "set inplace=False."
                )


@dataclass(frozen=True)
class Torn:
    """A value that is changed in place: no part may begin after ``first`` up to ``last``."""

    first: int
    last: int
    name: str


def torn_by_cuts(graph: Graph) -> list[Torn]:
    """Every value that is changed in place, from where it is made to where it is changed.

    A model input is in every part: where one part changes it, no other may read it.
    """
    position = {node: at for at, node in enumerate(graph.nodes)}
    found = []
    for node in graph.nodes:
        value = written(node)
        if value is None:
            continue
        touched = [position[node]]
        for origin in sources(value):
            known = _readers(origin) if origin.op == "placeholder" else (origin,)
            touched += [position[toucher] for toucher in known]
        found.append(Torn(min(touched), max(touched), str(node.target)))
    return found


def _readers(origin: Node) -> Iterator[Node]:
    for user in origin.users:
        if is_free(user):
            yield from _readers(user)
        else:
            yield user

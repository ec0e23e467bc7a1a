"""What to say of stages that no cut could make alike."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from torch.fx import Graph, Node

from fleetx.strategies.pipeline.balance import layers

TOLERATED = 1.5
"""How much more than an even share a stage may have before somebody hears of it."""


def remark(
    graph: Graph,
    costs: Mapping[str, float],
    points: Sequence[str],
    refused: Mapping[str, str],
    counted: str,
) -> str:
    """One line for stages of which one has much more than its share, and why; else nothing.

    Args:
        graph: the forward.
        costs: what each node costs, by its name.
        points: the submodules that begin the second and each later stage.
        refused: submodules that should have been cut inside -> why they could not be.
        counted: what the costs are.
    """
    total = sum(costs.values())
    stages = _pieces(graph, [node for node in layers(graph) if str(node.target) in points])
    shares = [_cost(stage, costs) / total if total else 0.0 for stage in stages]
    worst = max(range(len(stages)), key=shares.__getitem__)
    if shares[worst] * len(stages) <= TOLERATED:
        return ""
    return (
        f"pipeline: stage {worst} of {len(stages)} has {shares[worst]:.0%} of the {counted}, where "
        f"an even share is {1 / len(stages):.0%}, because "
        f"{_reason(graph, costs, stages[worst], refused)}. Let pipeline_configs['split'] name "
        "submodules that begin stages, or set a smaller pp_degree."
    )


def _pieces(graph: Graph, begins: Sequence[Node]) -> list[list[Node]]:
    """The nodes before, between and behind the given ones."""
    nodes = list(graph.nodes)
    borders = [0, *(nodes.index(node) for node in begins), len(nodes)]
    return [nodes[begin:end] for begin, end in pairwise(borders)]


def _cost(nodes: Sequence[Node], costs: Mapping[str, float]) -> float:
    return sum(costs.get(node.name, 0.0) for node in nodes)


def _reason(
    graph: Graph, costs: Mapping[str, float], stage: Sequence[Node], refused: Mapping[str, str]
) -> str:
    """Why the stage was not cut once more: what is dearest in it cannot be."""
    begins = layers(graph)[1:]
    inside = set(stage)
    pieces = [piece for piece in _pieces(graph, begins) if inside.issuperset(piece)]
    piece = max(pieces, key=lambda nodes: _cost(nodes, costs))
    part = _cost(piece, costs) / sum(costs.values())
    calls = [node for node in piece if node.op == "call_module"]
    dearest = max(calls, key=lambda node: costs.get(node.name, 0.0))
    name, alone = str(dearest.target), costs.get(dearest.name, 0.0) / sum(costs.values())
    if name in refused:
        return f"{name!r} ({alone:.0%}) cannot be cut inside: {refused[name]}"
    if alone > part / 2:
        return f"{name!r} ({alone:.0%}) is one call, and no stage can begin inside of it"
    return (
        f"no stage can begin between {str(calls[0].target)!r} and {str(calls[-1].target)!r} "
        f"({part:.0%}), where values are changed in place or submodules run more than once"
    )

"""``paddle.fluid.contrib.op_frequence``."""

from collections import Counter

from fleetx.static.record.program import Program


def op_freq_statistic(program: Program) -> tuple[dict[str, int], dict[str, int]]:
    """How often each operator is used, and how often each follows another."""
    nodes = [node for node in program.graph.nodes if node.op.startswith("call_")]
    single = Counter(_name(node.target) for node in nodes)
    pairs = Counter(
        f"{_name(before.target)}->{_name(node.target)}"
        for node in nodes
        for before in node.all_input_nodes
        if before.op.startswith("call_")
    )
    return dict(single.most_common()), dict(pairs.most_common())


def _name(target: object) -> str:
    return str(getattr(target, "__name__", target))

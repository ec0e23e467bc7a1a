"""Which operators a result needs, those that write into its tensors included."""

from collections.abc import Collection, Iterable

from torch import Tensor, fx

from fleetx.record.writes import written
from fleetx.torch_internals import storage_number


def live_nodes(
    graph: fx.Graph,
    outputs: Iterable[fx.Node],
    *,
    stop: Collection[fx.Node] = (),
    with_state: bool = False,
    with_acts: bool = False,
) -> set[fx.Node]:
    """Everything that ``outputs`` depend on.

    Args:
        graph: the operators.
        outputs: what shall be computed.
        stop: nodes that are given, so that nothing before them is needed.
        with_state: also what writes into buffers, such as running statistics, and random numbers
            that are drawn whatever is fed.
        with_acts: also layers that change their own buffers or draw random numbers, whether or not
            somebody uses what they return: heads whose loss is left out, for example.
    """
    found: set[fx.Node] = set()
    _need(outputs, found, stop)
    if with_state:
        drawn = [n for n in graph.nodes if n.meta.get("kept") and not n.all_input_nodes]
        _need(drawn, found, stop)
    if with_acts:
        _need([node for node in graph.nodes if node.meta.get("acts")], found, stop)
    writers = [(node, base) for node in graph.nodes if (base := written(node)) is not None]
    while True:
        touched = {where for node in found if (where := storage(node)) is not None}
        missing = [
            node
            for node, base in writers
            if node not in found
            and (storage(base) in touched or (with_state and base.op == "get_attr"))
        ]
        missing += _given_to_replays(graph, found)
        if not missing:
            return found
        _need(missing, found, stop)


def _given_to_replays(graph: fx.Graph, found: Collection[fx.Node]) -> list[fx.Node]:
    """What decides whether a checkpoint has gradients, though its function may not use it."""
    replays = {replay for node in found for replay in node.meta.get("replays", ())}
    names = {name for replay in replays for name in replay.given}
    return [n for n in graph.nodes if n.name in names and n not in found] if names else []


def _need(nodes: Iterable[fx.Node], found: set[fx.Node], stop: Collection[fx.Node]) -> None:
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            if node not in stop:
                stack.extend(node.all_input_nodes)


def storage(node: fx.Node) -> int | None:
    """Identifies the memory of a node's tensor; views share it."""
    if "storage" in node.meta:  # that of what it stands for
        found: int = node.meta["storage"]
        return found
    value = node.meta.get("val")
    return storage_number(value) if isinstance(value, Tensor) else None

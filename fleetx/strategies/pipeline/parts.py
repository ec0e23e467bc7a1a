"""Cutting a followed forward into consecutive parts, and running a part on the live model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from torch import fx, nn
from torch.fx import Graph, Node
from typing_extensions import override

from fleetx.graph.part import Part
from fleetx.record.codegen import code
from fleetx.record.replays import ITSELF
from fleetx.strategies.pipeline.cut_points import starts
from fleetx.strategies.pipeline.node_kinds import is_free, is_item

Code = Callable[..., Any]
"""Takes the model, the inputs and what was received."""
Check = Callable[[Mapping[str, Any]], None]
"""Refuses inputs for which a forward was not followed."""


class Brought(Mapping[bool, Sequence[Part]]):
    """The parts of a model that cuts itself: those in force now, for training and evaluation."""

    def __init__(self, meta: Mapping[str, Any]) -> None:
        self._meta = meta

    @override
    def __getitem__(self, training: bool) -> Sequence[Part]:
        found: Sequence[Part] = self._meta["parts"]
        return found

    @override
    def __iter__(self) -> Iterator[bool]:
        return iter((True, False))

    @override
    def __len__(self) -> int:
        return 2


def run(
    part: Part,
    model: nn.Module,
    inputs: Mapping[str, Any],
    received: Sequence[Any] = (),
    code: Code | None = None,
) -> Any:
    """Run one part on the model as it is now: a tuple to send, or the output of the model.

    Submodules are called and parameters are fetched when they are needed, so that hooks, replaced
    forwards and exchanged parameters act. ``code`` is what became of the part's own, if something
    did.
    """
    for path, mode in part.modes:
        if model.get_submodule(path).training != mode:
            name = repr(path) if path else "the model"
            raise ValueError(
                f"{name} was {_mode(mode)} when the model was cut, and is {_mode(not mode)} now, "
                "which its forward asks for; follow the model again."
            )
    missing = [name for name in part.inputs if name not in inputs]
    if missing:
        raise ValueError(f"the forward needs {missing}, and the batch holds {sorted(inputs)}.")
    return (code or part.code)(model, *(inputs[name] for name in part.inputs), *received)


def _mode(training: bool) -> str:
    return "training" if training else "evaluating"


class _Recorded(Part):
    """A part whose code has regions without gradients, of other formats, and checkpoints."""

    @cached_property
    @override
    def code(self) -> Callable[..., Any]:
        made = Graph()
        made.output(made.graph_copy(self.graph, {}))
        function = code(made)
        if not any(node.meta.get("replays") for node in self.graph.nodes):
            return function
        return lambda model, *values: function(_Handed(model), *values)


class _Handed:
    """A model that the code of a checkpoint can hand on: programs have such a name for it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        setattr(self, ITSELF, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def cut(graph: Graph, points: Sequence[str], check: Check | None = None) -> list[Part]:
    """The forward in ``len(points) + 1`` parts, each of which begins with the submodule named.

    What a later part needs travels through all parts between. Model inputs, parameters, sizes and
    what python computes from sizes do not travel: each part that needs them has its own.

    Raises:
        ValueError: A point is unknown, runs never or twice or in another order, or lies between a
            value and a change of it in place.
    """
    plan = _Plan(graph, starts(graph, points), check)
    return [plan.part(number) for number in range(len(points) + 1)]


class _Plan:
    """Which part runs which nodes, and what travels between them."""

    def __init__(self, graph: Graph, begins: Sequence[int], check: Check | None) -> None:
        count = len(begins) + 1
        self._more = {} if check is None else {"check": check}
        self._nodes = list(graph.nodes)
        self._homes = _homes(self._nodes, begins)
        self._needs = [_needs(self._homes, number) for number in range(count)]
        self._received = [self._crossing(number) for number in range(count + 1)]

    def _crossing(self, number: int) -> list[Node]:
        """The values that part ``number`` receives, for itself or for a later one."""
        needed = set[Node]().union(*self._needs[number:])
        return [node for node, home in self._homes.items() if home < number and node in needed]

    def part(self, number: int) -> Part:
        """One part as a graph of its own."""
        received, sent = self._received[number], self._received[number + 1]
        needed, homes = self._needs[number], self._homes
        own = [n for n in self._nodes if n in needed and homes.get(n, number) == number]
        inputs = [node for node in own if node.op == "placeholder"]
        return _Recorded(
            graph=_graph(inputs, received, own, sent),
            inputs=tuple(str(node.target) for node in inputs),
            receives=tuple(node.name for node in received),
            sends=tuple(node.name for node in sent),
            modules=frozenset(str(node.target) for node in own if node.op == "call_module"),
            attributes=frozenset(str(node.target) for node in own if node.op == "get_attr"),
            modes=tuple(mode for node in own for mode in node.meta.get("modes", {}).items()),
            **self._more,
        )


def _homes(nodes: Sequence[Node], begins: Sequence[int]) -> dict[Node, int]:
    """The part in which each node runs, but for those that run wherever they are needed."""
    homes: dict[Node, int] = {}
    for at, node in enumerate(nodes):
        if node.op == "output" or not is_free(node):
            homes[node] = sum(begin <= at for begin in begins)
    for node in homes:
        # An item of a tuple that a layer returned goes alone: tensors travel, tuples do not.
        if is_item(node) and isinstance(node.args[0], Node) and node.args[0] in homes:
            homes[node] = homes[node.args[0]]
    return homes


def _needs(homes: Mapping[Node, int], number: int) -> set[Node]:
    """All nodes that one part computes or must be given."""
    found: set[Node] = set()
    pending = [node for node, home in homes.items() if home == number]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if homes.get(node, number) == number:
                pending += node.all_input_nodes
    return found


def _graph(
    inputs: Sequence[Node], received: Sequence[Node], own: Sequence[Node], sent: Sequence[Node]
) -> Graph:
    made = Graph()
    copies = {node: made.placeholder(str(node.target)) for node in inputs}
    copies |= {node: made.placeholder(node.name) for node in received}
    result: Any = tuple(sent)
    for node in own:
        if node.op == "output":
            result = node.args[0]
        elif node not in copies:
            copies[node] = made.node_copy(node, copies.__getitem__)
    made.output(fx.map_arg(result, copies.__getitem__))
    return made

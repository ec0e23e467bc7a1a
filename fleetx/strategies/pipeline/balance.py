"""What the steps of a forward cost, and where to cut so that the dearest part is cheapest."""

import operator
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.fx import Graph, Node
from torch.utils.flop_counter import FlopCounterMode
from typing_extensions import override

from fleetx.graph.likeness import inputs_alike, likeness
from fleetx.strategies.pipeline.cut_points import torn_by_cuts
from fleetx.torch_internals import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    as_if_compiling,
    parameters_of,
    storage_number,
    tree_leaves,
    tree_map,
)

OPERATIONS_PER_BYTE = 16
"""What a byte that is moved costs, in operations: what a CPU or a card computes meanwhile in
float32. It decides between layers that move much and those that compute much, and so roughly."""


def costs(
    model: nn.Module, graph: Graph, args: Sequence[Any] | Mapping[str, Any]
) -> dict[str, float]:
    """What each node costs on a sample, by node name: operations, and bytes at their price.

    They are counted on tensors without numbers, so that every rank gets the same at every time, and
    nothing of the model is touched. A parameter counts where it is computed with first.

    ``args`` are the inputs of the graph, in order or by name. A model that decides by numbers gets
    what its layers have in parameters instead.
    """
    if isinstance(args, Mapping):
        names = [str(node.target) for node in graph.nodes if node.op == "placeholder"]
        missing = [name for name in names if name not in args]
        if missing:
            raise ValueError(f"the forward needs {missing}, and the sample holds {sorted(args)}.")
        args = [args[name] for name in names]
    if graph in _COUNTED:  # for a graph that is cut into several numbers of parts
        return _COUNTED[graph]
    device = next((t.device for t in _tensors(list(args)) if not t.is_meta), torch.device("cpu"))
    count = _Count(model, graph, device)
    try:
        # As it was recorded: code that has another way for compilers, without numbers, takes it.
        with torch.no_grad(), count.fakes, count.operations, as_if_compiling():
            count.run(*tree_map(count.fake, list(args)), enable_io_processing=False)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return sizes(model, graph)
    _COUNTED[graph] = count.costs
    return count.costs


_COUNTED = WeakKeyDictionary[Graph, dict[str, float]]()
"""What the nodes of a graph cost on the sample for which it was recorded."""


def sizes(model: nn.Module, graph: Graph) -> dict[str, float]:
    """What stands for costs when there is no sample: the parameters that each call computes with.

    An embedding computes nothing, it only looks rows up. A tied parameter counts once.
    """
    seen: set[nn.Parameter] = set()
    return {
        node.name: float(sum(p.numel() for p in _new(model.get_submodule(str(node.target)), seen)))
        for node in graph.nodes
        if node.op == "call_module"
    }


def _new(module: nn.Module, seen: set[nn.Parameter]) -> list[nn.Parameter]:
    """The parameters that a module computes with and that none before it does."""
    computing = (m for m in module.modules() if not isinstance(m, nn.Embedding | nn.EmbeddingBag))
    own = {p for m in computing for p in parameters_of(m).values() if p is not None}
    found = list(own - seen)
    seen |= own
    return found


class _Count(fx.Interpreter):
    """Runs a graph on the live model, without numbers, and counts what each node does."""

    def __init__(self, model: nn.Module, graph: Graph, device: torch.device) -> None:
        super().__init__(model, graph=graph)
        self._device = device
        self.fakes = FakeTensorMode(allow_non_fake_inputs=True)
        self.operations = FlopCounterMode(display=False)
        self.costs: dict[str, float] = {}
        self._model, self._seen = model, set[nn.Parameter]()
        self._known: dict[Hashable, tuple[Any, int]] = {}
        """Calls of submodules -> what they returned, and how many operations they took."""
        self._repeated = 0

    def fake(self, value: Any) -> Any:
        """A tensor without its numbers; anything else as it is.

        Of a model on the meta device it lies where the inputs are, with which it is computed.
        """
        if not isinstance(value, Tensor):
            return value
        if not value.is_meta:
            return self.fakes.from_tensor(value)
        with self.fakes:
            made = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=self._device
            )
        return nn.Parameter(made, value.requires_grad) if isinstance(value, nn.Parameter) else made

    @override
    def fetch_attr(self, target: str) -> Any:
        return self.fake(super().fetch_attr(target))

    @override
    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self._model.get_submodule(str(target))
        key = likeness(module, str(target)), inputs_alike(tree_leaves((args, kwargs)))
        if key in self._known:
            returned, self._repeated = self._known[key]
            return tree_map(_another, returned)
        before = self.operations.get_total_flops()
        returned = self._called(module, args, kwargs)
        given = {storage_number(tensor) for tensor in _tensors((args, kwargs))}
        if None not in key and given.isdisjoint(map(storage_number, _tensors(returned))):
            self._known[key] = returned, self.operations.get_total_flops() - before
        return returned

    def _called(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        held = (*module.named_parameters(), *module.named_buffers())
        state = {name: self.fake(tensor) for name, tensor in held}  # so that none is written
        return torch.func.functional_call(module, state, args, kwargs)

    @override
    def run_node(self, n: Node) -> Any:
        before, self._repeated = self.operations.get_total_flops(), 0
        result = super().run_node(n)
        operations = self.operations.get_total_flops() - before + self._repeated
        self.costs[n.name] = operations + OPERATIONS_PER_BYTE * self._bytes(n, result)
        return result

    def _bytes(self, node: Node, result: Any) -> int:
        """What a node writes, views aside, and the parameters that it is the first to read."""
        if not node.op.startswith("call_"):
            return 0
        given = {storage_number(t) for n in node.all_input_nodes for t in _tensors(self.env.get(n))}
        moved = [t for t in _tensors(result) if storage_number(t) not in given]
        if node.op == "call_module":
            moved += _new(self._model.get_submodule(str(node.target)), self._seen)
        return sum(tensor.numel() * tensor.element_size() for tensor in moved)


def _another(leaf: Any) -> Any:
    """A tensor of the same shape in memory of its own."""
    return torch.empty_like(leaf) if isinstance(leaf, Tensor) else leaf


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def points(
    graph: Graph, costs: Mapping[str, float], parts: int, model: nn.Module | None = None
) -> list[str]:
    """The submodules that begin the second and each later part.

    Of all ways to cut before submodules that run once, one whose dearest part is cheapest. Where
    that leaves a part without parameters, for which there is no optimizer, one of those that begin
    with a submodule that has some.

    Args:
        graph: the forward.
        costs: what each node costs, by its name.
        parts: how many there shall be.
        model: whose parameters are looked for; None: nobody needs any.

    Raises:
        ValueError: There are fewer such submodules than parts.
    """
    begins = layers(graph)
    _check(begins, parts, "")
    found = _cut(graph, costs, begins, parts)
    if model is None or _all_hold(model, graph, found):
        return found
    begins = [begins[0], *[layer for layer in begins if _holds(model, layer)][1:]]
    _check(begins, parts, " and have parameters")
    return _cut(graph, costs, begins, parts)


def _all_hold(model: nn.Module, graph: Graph, found: Sequence[str]) -> bool:
    """Whether each part has parameters."""
    nodes = list(graph.nodes)
    targets = [str(node.target) for node in nodes]
    borders = [0, *map(targets.index, found), len(nodes)]
    return all(
        any(_holds(model, node) for node in nodes[begin:end]) for begin, end in pairwise(borders)
    )


def _holds(model: nn.Module, node: Node) -> bool:
    """Whether it computes with parameters."""
    if node.op == "get_attr":
        return isinstance(operator.attrgetter(str(node.target))(model), nn.Parameter)
    called = node.op == "call_module"
    return called and any(True for _ in model.get_submodule(str(node.target)).parameters())


def _check(begins: Sequence[Node], parts: int, which: str) -> None:
    if len(begins) < parts:
        raise ValueError(
            f"the model has {len(begins)} layers that could begin a stage{which}, and the pipeline "
            f"has {parts} stages; set pp_degree to at most {len(begins)}, or give the model more "
            "submodules that run once."
        )


def _cut(graph: Graph, costs: Mapping[str, float], begins: Sequence[Node], parts: int) -> list[str]:
    nodes = list(graph.nodes)
    position = {node: at for at, node in enumerate(nodes)}
    borders = [0, *(position[layer] for layer in begins[1:]), len(nodes)]
    weights = [
        sum(costs.get(node.name, 0.0) for node in nodes[begin:end])
        for begin, end in pairwise(borders)
    ]
    return [str(begins[at].target) for at in _even(weights, parts)]


def layers(graph: Graph) -> list[Node]:
    """The calls of submodules that may begin a part; the first one begins the model."""
    times = Counter(node.target for node in graph.nodes if node.op == "call_module")
    torn = torn_by_cuts(graph)
    once = [
        (at, node)
        for at, node in enumerate(graph.nodes)
        if node.op == "call_module" and times[node.target] == 1
    ]
    whole = [node for at, node in once[1:] if not any(t.first < at <= t.last for t in torn)]
    return [once[0][1], *whole] if once else []


def _even(weights: Sequence[float], parts: int) -> list[int]:
    """Where each group but the first begins, when the heaviest of ``parts`` groups is lightest."""
    total = [0.0, *accumulate(weights)]
    best = [*total]
    choices: list[list[int]] = []
    for number in range(1, parts):
        before, best, chosen = best, [inf] * len(total), [0] * len(total)
        for end in range(number + 1, len(total)):
            begin = _crossing(before, total, number, end)
            nearby = range(max(number, begin - 1), min(begin, end - 1) + 1)
            best[end], chosen[end] = min(
                (max(before[at], total[end] - total[at]), at) for at in nearby
            )
        choices.append(chosen)
    begins = [len(weights)]
    for chosen in reversed(choices):
        begins.append(chosen[begins[-1]])
    return begins[:0:-1]


def _crossing(before: Sequence[float], total: Sequence[float], first: int, end: int) -> int:
    """Where the last group stops to be the heaviest: it shrinks, and those before it grow."""
    return bisect_left(
        range(end), True, lo=first, key=lambda at: before[at] >= total[end] - total[at]
    )

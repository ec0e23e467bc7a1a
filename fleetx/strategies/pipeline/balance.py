"""What the steps of a forward cost, and where to cut so that the dearest part is cheapest."""

import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from math import inf
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx import Graph, Node
from typing_extensions import override

from fleetx.strategies.pipeline.cut_points import torn_by_cuts
from fleetx.torch_internals import tree_map

_REPEATS = 3


def costs(
    model: nn.Module, graph: Graph, args: Sequence[Any] | Mapping[str, Any]
) -> dict[str, float]:
    """Seconds that each node takes on a sample, by node name: the median of three runs.

    ``args`` are the inputs of the graph, in order or by name. Buffers and the state of the random
    number generators are as before afterwards.
    """
    if isinstance(args, Mapping):
        names = [str(node.target) for node in graph.nodes if node.op == "placeholder"]
        missing = [name for name in names if name not in args]
        if missing:
            raise ValueError(f"the forward needs {missing}, and the sample holds {sorted(args)}.")
        args = [args[name] for name in names]
    clock = _Clock(model, graph)
    with torch.no_grad(), _kept(model):
        for number in range(_REPEATS + 1):
            if number == 1:
                clock.seconds.clear()  # the first run only warms up
            clock.run(*tree_map(_copy, list(args)), enable_io_processing=False)
    return {name: statistics.median(times) for name, times in clock.seconds.items()}


def sizes(model: nn.Module, graph: Graph) -> dict[str, float]:
    """What stands for costs when there is no sample: the parameters that each call computes with.

    An embedding computes nothing, it only looks rows up.
    """
    calls = (node for node in graph.nodes if node.op == "call_module")
    return {node.name: _size(model.get_submodule(str(node.target))) for node in calls}


def _size(module: nn.Module) -> float:
    computing = (m for m in module.modules() if not isinstance(m, nn.Embedding | nn.EmbeddingBag))
    own = {p for m in computing for p in m.parameters(recurse=False)}
    return float(sum(parameter.numel() for parameter in own))


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


class _Clock(fx.Interpreter):
    """Runs a graph on the live model and times each node."""

    def __init__(self, model: nn.Module, graph: Graph) -> None:
        super().__init__(model, graph=graph)
        devices = {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}
        self._waits = bool(devices - {"cpu", "meta"})
        self.seconds: dict[str, list[float]] = {}

    @override
    def run_node(self, n: Node) -> Any:
        begin = perf_counter()
        result = super().run_node(n)
        if self._waits:
            torch.accelerator.synchronize()
        self.seconds.setdefault(n.name, []).append(perf_counter() - begin)
        return result


@contextmanager
def _kept(model: nn.Module) -> Iterator[None]:
    buffers = {buffer: buffer.clone() for buffer in model.buffers()}
    devices = {p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")}
    kind = next(iter(devices)).type if devices else "cuda"
    with torch.random.fork_rng(devices=list(devices), device_type=kind):
        try:
            yield
        finally:
            for buffer, before in buffers.items():
                buffer.copy_(before)


def points(graph: Graph, costs: Mapping[str, float], parts: int) -> list[str]:
    """The submodules that begin the second and each later part.

    Of all ways to cut before submodules that run once, one whose dearest part is cheapest.

    Raises:
        ValueError: There are fewer such submodules than parts.
    """
    layers = _layers(graph)
    if len(layers) < parts:
        raise ValueError(
            f"the model has {len(layers)} layers that could begin a stage, and the pipeline has "
            f"{parts} stages; set pp_degree to at most {len(layers)}, or give the model more "
            "submodules that run once."
        )
    nodes = list(graph.nodes)
    position = {node: at for at, node in enumerate(nodes)}
    begins = [0, *(position[layer] for layer in layers[1:])]
    weights = [
        sum(costs.get(node.name, 0.0) for node in nodes[begin:end])
        for begin, end in zip(begins, [*begins[1:], len(nodes)], strict=True)
    ]
    return [str(layers[at].target) for at in _even(weights, parts)]


def _layers(graph: Graph) -> list[Node]:
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

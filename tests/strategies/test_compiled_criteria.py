"""Criteria that users bring mean the same when compile makes code of them, whatever they do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.nn.functional as differentiable
from torch import Tensor, fx, nn
from torch import distributed as dist
from torch.nn import functional as F

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world
from tests.rotation import rotating

GRAPHS: list[bool] = []
"""For every graph that was compiled, whether it is one of the criterion."""


def count(module: fx.GraphModule, inputs: Any) -> Any:
    calls = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    GRAPHS.append(not any("linear" in call for call in calls))
    return torch._dynamo.lookup_backend("aot_eager")(module, inputs)


torch._dynamo.register_backend(count, name="fleetx_criteria")
LABELS = torch.randint(0, 6, (8,), generator=torch.Generator().manual_seed(3))


STEPS = 12
"""More than torch compiles for one piece of code, if each is another one."""


class Rising(nn.Module):
    """Computes with another number in each batch, as schedules of weights do."""

    number = 0

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        self.number += 1
        return F.cross_entropy(scores, labels) * self.number


class Memory(nn.Module):
    """Keeps features of earlier batches, as contrastive losses do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(24, 6))
        self.place = 0

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        kept = self.get_buffer("kept")
        with torch.no_grad():
            kept[self.place : self.place + len(scores)] = scores
        self.place = (self.place + len(scores)) % len(kept)
        return (scores - kept.mean(0)).square().mean()


def over_all_workers(scores: Tensor, labels: Tensor) -> Tensor:
    """Compares with the features of every worker, as CLIP does."""
    every = torch.cat(differentiable.all_gather(scores))
    return F.cross_entropy(scores @ every.t(), torch.arange(8) + 8 * dist.get_rank())


def branches(scores: Tensor, labels: Tensor) -> Tensor:
    """Asks for a number on its way."""
    if float(scores.detach().sum()) > 0:
        return F.cross_entropy(scores, labels)
    return F.cross_entropy(scores * 2, labels)


def hardest(scores: Tensor, labels: Tensor) -> Tensor:
    """As many as a batch has."""
    return F.cross_entropy(scores, labels, reduction="none")[scores[:, 0] > 0].sum()


def of_timm() -> Any:
    from tests.libraries import timm  # noqa: F401, I001  (before its parts)
    from timm.loss import BinaryCrossEntropy

    return BinaryCrossEntropy(smoothing=0.1)


CRITERIA: dict[str, Callable[[], Any]] = {
    "memory": Memory,
    "rising": Rising,
    "over all workers": lambda: over_all_workers,
    "branches": lambda: branches,
    "hardest": lambda: hardest,
    "timm": of_timm,
    "weights": lambda: nn.CrossEntropyLoss(weight=torch.arange(1.0, 7.0), label_smoothing=0.1),
}


def losses(name: str, compiled: bool) -> list[float]:
    strategy = fleet.DistributedStrategy()
    strategy.compile = compiled
    if compiled:
        strategy.compile_configs = {"backend": "fleetx_criteria"}
    fleet.init(is_collective=True, strategy=strategy)
    try:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
        model: Any = fleet.distributed_model(net, criterion=CRITERIA[name]())
        fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        draw = torch.Generator().manual_seed(fleet.worker_index())
        inputs = torch.randn(STEPS, 8, 8, generator=draw)
        return [float(model.train_batch((x, LABELS)).detach()) for x in inputs]
    finally:
        roles.stop()
        torch._dynamo.reset()


def both(name: str) -> tuple[list[float], list[float], int]:
    GRAPHS.clear()
    return losses(name, compiled=False), losses(name, compiled=True), sum(GRAPHS)


@pytest.mark.parametrize("name", rotating(list(CRITERIA), 3))
def test_a_criterion_means_the_same(name: str) -> None:
    for usual, found, compiled in world(2, timeout=200).run(both, name):
        # Torch makes no code of a function that breaks off to exchange something.
        assert (compiled > 0) is (name != "over all workers")
        assert len(set(usual)) == STEPS
        assert found == pytest.approx(usual, rel=1e-5)

"""Criteria that users bring mean the same when compile makes code of them, whatever they do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.nn.functional as differentiable
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world
from tests.rotation import rotating

LABELS = torch.randint(0, 6, (8,), generator=torch.Generator().manual_seed(3))


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
        strategy.compile_configs = {"backend": "aot_eager"}
    fleet.init(is_collective=True, strategy=strategy)
    try:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
        model: Any = fleet.distributed_model(net, criterion=CRITERIA[name]())
        fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        draw = torch.Generator().manual_seed(fleet.worker_index())
        inputs = torch.randn(4, 8, 8, generator=draw)
        return [float(model.train_batch((x, LABELS)).detach()) for x in inputs]
    finally:
        roles.stop()
        torch._dynamo.reset()


def both(name: str) -> tuple[list[float], list[float]]:
    return losses(name, compiled=False), losses(name, compiled=True)


@pytest.mark.parametrize("name", rotating(list(CRITERIA), 3))
def test_a_criterion_means_the_same(name: str) -> None:
    for usual, found in world(2, timeout=200).run(both, name):
        assert len(set(usual)) == 4
        assert found == pytest.approx(usual, rel=1e-5)

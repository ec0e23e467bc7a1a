"""fp16 all-reduce: half the bytes travel, and what they do is one rounding."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx.testing import world
from tests.engine.training import data, net, spread, weights
from tests.strategies.paddle import start


@contextmanager
def sent() -> Iterator[list[Tensor]]:
    """Everything that is given to all-reduce in Python, as it was when it was sent."""
    real, seen = dist.all_reduce, []

    def counted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(tensor.clone())
        return real(tensor, *args, **kwargs)

    dist.all_reduce = counted
    try:
        yield seen
    finally:
        dist.all_reduce = real


@world(2)
def test_gradients_travel_as_halves_of_the_mean() -> None:
    start(fp16_allreduce=True)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    inputs, targets = data()
    mine = slice(fleet.worker_index(), None, 2)
    local = net()
    F.cross_entropy(local(inputs[mine]), targets[mine]).backward()
    before = weights(model)
    with sent() as seen:
        optimizer.minimize(F.cross_entropy(model(inputs[mine]), targets[mine]))
    assert [tensor.dtype for tensor in seen] == [torch.float16] * len(seen)
    assert sum(tensor.numel() for tensor in seen) == sum(p.numel() for p in net().parameters())
    gradients = [p.grad for p in local.parameters() if p.grad is not None]
    half = torch.cat([(gradient / 2).half().flatten() for gradient in gradients])
    everyone = [torch.empty_like(half) for _ in range(2)]
    dist.all_gather(everyone, half)
    expected = (everyone[0] + everyone[1]).float()
    torch.testing.assert_close(before - weights(model), expected, rtol=1e-5, atol=1e-6)
    assert spread(weights(model)) == 0


@world(2)
def test_a_sum_that_would_overflow_in_halves_is_divided_first() -> None:
    start(fp16_allreduce=True)
    model = fleet.distributed_model(torch.nn.Linear(1, 1, bias=False))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1e-5))
    before = weights(model)
    optimizer.minimize(model(torch.full((1, 1), 60000.0)).sum())
    torch.testing.assert_close(before - weights(model), torch.tensor([0.6]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("other", ["localsgd", "adaptive_localsgd"])
def test_without_an_exchange_of_gradients_it_is_refused(other: str) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.fp16_allreduce = True
    setattr(strategy, other, True)
    with pytest.raises(fleet.PlanError, match="fp16_allreduce needs an exchange of gradients"):
        strategy.explain(workers=2)


class Mixed(nn.Module):
    """Three layers of three formats, whose gradients are the sums of their inputs."""

    def __init__(self) -> None:
        super().__init__()
        formats = (torch.float32, torch.float64, torch.bfloat16)
        self.layers = nn.ModuleList(nn.Linear(4, 1, bias=False, dtype=kind) for kind in formats)

    def forward(self, x: Tensor) -> Tensor:
        outputs = [layer(x.to(next(layer.parameters()).dtype)).double() for layer in self.layers]
        return torch.stack(outputs).sum()


@world(2)
@pytest.mark.parametrize("stage", [None, 1, 3])
def test_gradients_that_are_not_float32_travel_in_their_own_format(stage: int | None) -> None:
    units = {"sharding_configs": {"stage": stage, "segment_broadcast_MB": 1e-6}}
    start(fp16_allreduce=True, **({"sharding": True, **units} if stage else {}))
    model = fleet.distributed_model(Mixed())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    before = fleet.full_state_dict(model, everywhere=True)
    optimizer.minimize(model(torch.full((1, 4), 1e6)))
    after = fleet.full_state_dict(model, everywhere=True)
    moved = [(before[name] - after[name]).double().mean().item() for name in before]
    assert moved[0] == float("inf"), "this one is narrowed"
    assert moved[1:] == pytest.approx([5e5, 5e5], rel=1e-2)


@world(2)
@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_a_model_that_has_nothing_to_narrow_is_refused(kind: torch.dtype) -> None:
    start(fp16_allreduce=True)
    with pytest.raises(fleet.PlanError, match=rf"{kind}.*set strategy\.fp16_allreduce = False"):
        fleet.distributed_model(net().to(kind))

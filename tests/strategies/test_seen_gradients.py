"""Between ``optimizer.backward(loss)`` and ``step()`` gradients are true ones under every plan."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

import fleetx as fleet
from fleetx.testing import world
from tests.engine.training import data, net
from tests.strategies.test_amp import Times, job, scaling

LIMIT = 0.02
"""Far below the norm of the gradients, so that clipping decides every update."""
PLANS: dict[str, dict[str, Any]] = {
    "replicas": {},
    "pure": {"amp_configs": {"use_pure_fp16": True}},
    "stage 1": {"sharding": True, "sharding_configs": {"stage": 1}},
    "stage 2": {"sharding": True, "sharding_configs": {"stage": 2}},
    "stage 3": {"sharding": True, "sharding_configs": {"stage": 3}},
    "tensors": {
        "tensor_parallel": True,
        "tensor_parallel_configs": {
            "tensor_parallel_degree": 2,
            "column": ["0"],
            "row": ["2"],
        },
    },
}


def clipped(settings: dict[str, Any], steps: int = 4) -> Tensor:
    """The weights after training with gradients that the loop clips by itself."""
    strategy = fleet.DistributedStrategy()
    for name, value in {"amp": True, **settings}.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=5.0))
    for step in range(steps):
        x, y = (part[step * 8 : step * 8 + 8] for part in data())
        mine = slice(fleet.data_index(), None, fleet.data_num())
        optimizer.backward(F.cross_entropy(model(x[mine]), y[mine]))
        clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
        optimizer.zero_grad()
    state = fleet.full_state_dict(model, everywhere=True)
    return torch.cat([value.flatten() for value in state.values()])


def plainly_clipped(merged: int = 1, steps: int = 4) -> tuple[Tensor, Tensor]:
    """The weights before and after, in float32 and without fleetx."""
    model = net()
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
    for step in range(steps):
        x, y = (part[step * 8 : step * 8 + 8] for part in data())
        (F.cross_entropy(model(x), y) / merged).backward()
        clip_grad_norm_(model.parameters(), LIMIT)
        if (step + 1) % merged == 0:
            optimizer.step()
            optimizer.zero_grad()
    return start, torch.cat([p.detach().flatten() for p in model.parameters()])


@world(2)
@pytest.mark.parametrize("plan", PLANS)
def test_a_loop_that_clips_by_itself_trains_as_in_float32(plan: str) -> None:
    after = clipped(PLANS[plan])
    start, expected = plainly_clipped()
    assert (after - expected).norm() < 1e-2 * (expected - start).norm()


@world(1)
def test_sums_that_wait_for_more_batches_are_true_too() -> None:
    after = clipped({"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}})
    start, expected = plainly_clipped(merged=2)
    assert (after - expected).norm() < 1e-2 * (expected - start).norm()


@world(4)
def test_where_gradients_are_exchanged_late_they_are_exchanged_before_they_are_seen() -> None:
    after = clipped(PLANS["tensors"])
    start, expected = plainly_clipped()
    assert (after - expected).norm() < 1e-2 * (expected - start).norm()


@world(2)
def test_what_is_seen_is_the_mean_of_the_workers() -> None:
    model, optimizer = job(Times([1.0, 2.0]), init_loss_scaling=256.0)
    rank = fleet.worker_index()
    optimizer.backward(model(torch.tensor([3.0, 4.0]) * (1 + rank)))
    assert model.weight.grad.tolist() == [4.5, 6.0]
    optimizer.step()
    assert model.weight.grad.tolist() == [4.5, 6.0]
    assert torch.allclose(model.weight, torch.tensor([0.55, 1.4]))


@world(1)
def test_several_backwards_add_up_to_true_gradients() -> None:
    model, optimizer = job(Times([1.0, 2.0]), init_loss_scaling=256.0)
    seen = []
    for gradient in ([3.0, 4.0], [1.0, 1.0]):
        optimizer.backward(model(torch.tensor(gradient)))
        seen.append(model.weight.grad.tolist())
        model.weight.grad.mul_(2)  # what is done to them stays
    optimizer.step()
    assert seen == [[3.0, 4.0], [7.0, 9.0]]
    assert torch.allclose(model.weight, torch.tensor([1.0 - 1.4, 2.0 - 1.8]))
    # Not cleared, as some loops mean it: the next batch adds to what is there.
    optimizer.backward(model(torch.tensor([1.0, 0.0])))
    assert model.weight.grad.tolist() == [15.0, 18.0]


@world(2)
def test_an_overflow_in_any_of_several_backwards_skips_the_update() -> None:
    model, optimizer = job(Times([1.0, 2.0]), decr_every_n_nan_or_inf=1)
    bad = torch.tensor([float("inf") if fleet.worker_index() else 1.0, 1.0])
    for gradient in (bad, torch.ones(2)):
        optimizer.backward(model(gradient))
        clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert model.weight.tolist() == [1.0, 2.0]
    assert scaling(optimizer) == (16384.0, 0, 0)


@world(1)
def test_a_batch_that_is_given_up_leaves_no_trace() -> None:
    model, optimizer = job(Times([1.0, 2.0]), decr_every_n_nan_or_inf=1)
    optimizer.backward(model(torch.tensor([float("nan"), 1.0])))
    optimizer.zero_grad()
    optimizer.minimize(model(torch.tensor([1.0, 1.0])))
    assert torch.allclose(model.weight, torch.tensor([0.9, 1.9]))
    assert scaling(optimizer) == (32768.0, 1, 0)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.moved, self.other = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.moved(x) + self.other(x)


@world(1)
def test_gradients_of_parameters_that_the_optimizer_was_not_given_are_true_too() -> None:
    model, optimizer = job(Two(), rule=lambda parameters: torch.optim.SGD(parameters[:2], lr=0.1))
    for count in (1, 2):
        optimizer.backward(model(torch.ones(1, 2)).sum())
        assert model.moved.weight.grad.tolist() == [[1.0, 1.0]]
        assert model.other.weight.grad.tolist() == [[count, count]]
        optimizer.step()
        optimizer.zero_grad()


class Halves(nn.Module):
    """Two losses, each of a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Times([1.0]), Times([1.0])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), self.two(x)


@world(2)
def test_backwards_that_reach_parts_of_a_model_are_exchanged_as_one() -> None:
    model, optimizer = job(Halves(), init_loss_scaling=256.0)
    first, second = model(torch.tensor([1.0 + fleet.worker_index()]))
    optimizer.backward(first)
    optimizer.backward(second)
    assert model.one.weight.grad.tolist() == model.two.weight.grad.tolist() == [1.5]
    optimizer.step()
    assert torch.allclose(model.one.weight, torch.tensor([0.85]))

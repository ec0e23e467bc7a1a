"""Loops that users write around the plan: own scalers, own schedulers, rollbacks, other verbs."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx.testing import world
from tests.strategies.paddle import start

INPUTS = torch.randn(4, 4, generator=torch.Generator().manual_seed(3))
MERGE = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}}


def linear(**settings: Any) -> tuple[nn.Module, Any, Tensor]:
    """A layer whose gradient is the mean of its inputs, its optimizer and its first weight."""
    start(**settings)
    torch.manual_seed(0)
    layer = nn.Linear(4, 1, bias=False)
    before = layer.weight.detach().clone()
    model = fleet.distributed_model(layer)
    return model, fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1.0)), before


def moved(model: nn.Module, before: Tensor) -> Tensor:
    found = fleet.full_state_dict(model, everywhere=True)["weight"]
    return (before - found)[0]


@world(1)
@pytest.mark.parametrize("factor", [1.0, float("inf")])
def test_a_scaler_of_the_user_works_with_a_fused_optimizer(factor: float) -> None:
    start()
    found = []
    for distribute in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 1, bias=False)
        if distribute:
            model = fleet.distributed_model(model)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
        if distribute:
            optimizer = fleet.distributed_optimizer(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(model(INPUTS * factor).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append((model.weight.detach().clone(), scaler.get_scale()))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


@world(1)
def test_a_scheduler_on_the_given_optimizer_steers_after_a_load() -> None:
    start(lars=True)
    model = nn.Linear(4, 4)
    given = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(given, 1, 0.5)
    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(given)
    for expected in (0.5, 0.25, 0.125):
        optimizer.minimize(model(INPUTS).pow(2).mean())
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == expected
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def rolled_back(stage: int | None, known: bool) -> Tensor:
    """What a group of batches moves, when another one was begun and given up before."""
    sharded = {"sharding": True, "sharding_configs": {"stage": stage}} if stage else {}
    model, optimizer, before = linear(**MERGE, **sharded)
    state = copy.deepcopy(optimizer.state_dict())
    if not known:
        del state["layout"]  # as plain torch saves it
    optimizer.minimize(model(INPUTS).mean() * 1000)
    optimizer.load_state_dict(state)
    for _ in range(2):
        optimizer.minimize(model(INPUTS).mean())
    return moved(model, before)


@pytest.mark.parametrize("known", [True, False], ids=["", "state of plain torch"])
@pytest.mark.parametrize("stage", [None, 1, 3])
def test_a_load_drops_gradients_that_wait(stage: int | None, known: bool) -> None:
    for found in world(2).run(rolled_back, stage, known):
        torch.testing.assert_close(found, INPUTS.mean(0))


@world(1)
@pytest.mark.parametrize("who", ["model", "optimizer"])
def test_clearing_leaves_gradients_that_wait(who: str) -> None:
    model, optimizer, before = linear(**MERGE)
    for at in range(4):
        (model if who == "model" else optimizer).zero_grad()
        optimizer.backward(model(INPUTS[at : at + 1]).sum())
        optimizer.step()
    torch.testing.assert_close(moved(model, before), INPUTS.sum(0) / 2)
    model.zero_grad()
    assert model.weight.grad is None
    twin = copy.deepcopy(model)
    twin.weight.grad = torch.ones(1, 4)
    twin.zero_grad()
    assert twin.weight.grad is None, "a copy belongs to no job"


@world(1)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("switches", [{"amp": True}, MERGE], ids=["amp", "gradient_merge"])
def test_a_backward_past_a_plan_that_scales_is_refused(
    switches: dict[str, Any], first: bool
) -> None:
    model, optimizer, before = linear(**switches)
    if first:
        model(INPUTS).mean().backward()
        with pytest.raises(RuntimeError, match=r"gave weight a gradient.*optimizer\.backward"):
            optimizer.backward(model(INPUTS).mean())
    else:
        optimizer.backward(model(INPUTS).mean())
        model(INPUTS).mean().backward()
        with pytest.raises(RuntimeError, match=r"gave weight a gradient.*optimizer\.backward"):
            optimizer.step()
    assert not moved(model, before).any()


@world(1)
@pytest.mark.parametrize("who", ["model", "optimizer"])
def test_gradients_that_were_cleared_are_no_strays(who: str) -> None:
    model, optimizer, before = linear(amp=True)
    model(INPUTS).sum().backward()
    (model if who == "model" else optimizer).zero_grad()
    optimizer.minimize(model(INPUTS).mean())
    torch.testing.assert_close(moved(model, before), INPUTS.mean(0), rtol=1e-2, atol=1e-2)


@world(1)
def test_several_backwards_through_the_plan_add_up() -> None:
    model, optimizer, before = linear(amp=True)
    for _ in range(2):
        optimizer.backward(model(INPUTS).mean())
    optimizer.step()
    torch.testing.assert_close(moved(model, before), 2 * INPUTS.mean(0), rtol=1e-2, atol=1e-2)

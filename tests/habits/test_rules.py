"""Update rules that scripts bring along, for cut parameters: as in a plain run, or named."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world

Rule = Callable[[Iterable[Tensor]], Optimizer]

RULES: dict[str, Rule] = {
    "ASGD": lambda held: torch.optim.ASGD(held, lr=0.05),
    "Adamax": lambda held: torch.optim.Adamax(held, lr=0.01),
    "NAdam": lambda held: torch.optim.NAdam(held, lr=0.01),
    "RAdam": lambda held: torch.optim.RAdam(held, lr=0.01),
    "RMSprop": lambda held: torch.optim.RMSprop(held, lr=0.01),
    "Adagrad": lambda held: torch.optim.Adagrad(held, lr=0.01),
    "Rprop": lambda held: torch.optim.Rprop(held, lr=0.01),
    # Its products in bfloat16 are rounded in another order.
    "Muon": lambda held: torch.optim.Muon(held, lr=0.02),
}
ROUNDED = {"Muon": 0.1}

REFUSED: dict[str, Rule] = {
    "Adafactor": lambda held: torch.optim.Adafactor(held, lr=0.05),
}

CUT: dict[str, dict[str, Any]] = {
    "sharding": {"sharding": True},
    "tp": {
        "tensor_parallel": True,
        "tensor_parallel_configs": {"tensor_parallel_degree": 2, "column": ["0"], "row": ["2"]},
    },
}


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32, bias=False), nn.Tanh(), nn.Linear(32, 8, bias=False))


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    # More samples than inputs: gradients without a rank to spare, which Muon would fill with noise.
    return [(torch.randn(64, 16), torch.randn(64, 8)) for _ in range(3)]


def plain(rule: Rule) -> dict[str, Tensor]:
    net = make()
    optimizer = rule(net.parameters())
    for inputs, targets in batches():
        F.mse_loss(net(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(net.state_dict())


def ours(name: str, axis: str) -> dict[str, Tensor]:
    roles.stop()
    strategy = fleet.DistributedStrategy()
    for flag, value in CUT[axis].items():
        setattr(strategy, flag, value)
    fleet.init(is_collective=True, strategy=strategy)
    net = fleet.distributed_model(make())
    optimizer = fleet.distributed_optimizer((RULES | REFUSED)[name](net.parameters()))
    share = slice(fleet.worker_index(), None, 2) if axis == "sharding" else slice(None)
    for inputs, targets in batches():
        F.mse_loss(net(inputs[share]), targets[share]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return fleet.full_state_dict(net)


def every(axis: str) -> list[dict[str, Tensor]]:
    return [ours(name, axis) for name in RULES]


@pytest.mark.parametrize("axis", CUT)
def test_rules_of_torch_are_those_of_a_plain_run(axis: str) -> None:
    start = make().state_dict()
    for name, found in zip(RULES, world(2).run(every, axis)[0], strict=True):
        for key, wanted in plain(RULES[name]).items():
            moved = (wanted - start[key]).abs().max()
            apart = (found[key] - wanted).abs().max()
            assert apart <= ROUNDED.get(name, 1e-4) * moved, (name, key, apart, moved)


def refused(name: str, axis: str) -> str:
    with pytest.raises(fleet.PlanError) as caught:
        ours(name, axis)
    return str(caught.value)


@pytest.mark.parametrize("axis", CUT)
@pytest.mark.parametrize("name", REFUSED)
def test_a_rule_that_torch_does_not_know_for_cut_parameters_is_named(name: str, axis: str) -> None:
    for said in world(2).run(refused, name, axis):
        assert said.startswith(f"{name} cannot update parameters that are cut over workers")
        assert f"turn off the strategy that cuts ({axis})" in said

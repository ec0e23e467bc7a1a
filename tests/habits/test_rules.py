"""Update rules that scripts bring along, for cut parameters: as in a plain run, or named."""

import importlib
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
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
LISTED = "_default_to_fused_or_foreach"
"""Chooses the form of an update in torch."""


def from_timm(name: str) -> Rule:
    from tests.libraries import timm  # here: it takes seconds, and other tests need none of it

    optim = importlib.import_module(f"{timm.__name__}.optim")
    return lambda held: optim.create_optimizer_v2([*held], opt=name, lr=0.01, weight_decay=0.01)


def from_pytorch_optimizer(name: str) -> Rule:
    library = importlib.import_module("pytorch_optimizer")
    return lambda held: library.load_optimizer(name)([*held], lr=0.01)


# Each calls something that torch cannot compute from parts, or computes wrongly from them.
TIMM = ["adamp", "cadamw", "cadafactorbv", "cadopt", "clamb", "clion", "csgdw", "novograd"]
PYTORCH_OPTIMIZER = [
    *("a2grad", "adafactor", "adagc", "adalite", "adan", "adanorm", "aida", "apollodqn", "asgd"),
    *("came", "dadaptadam", "dadaptlion", "fadam", "lars", "madgrad", "prodigy", "racs"),
    *("rose", "sara", "sm3", "spam", "stableadamw", "stablespam", "swats"),
]
OTHERS: dict[str, Callable[[], Rule]] = {
    "Adafactor of torch": lambda: lambda held: torch.optim.Adafactor(held, lr=0.05),
    **{f"{name} of timm": partial(from_timm, name) for name in TIMM},
    **{name: partial(from_pytorch_optimizer, name) for name in PYTORCH_OPTIMIZER},
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


def rule_of(name: str) -> Rule:
    return RULES[name] if name in RULES else OTHERS[name]()


def ours(name: str, axis: str) -> dict[str, Tensor]:
    roles.stop()
    strategy = fleet.DistributedStrategy()
    for flag, value in CUT[axis].items():
        setattr(strategy, flag, value)
    fleet.init(is_collective=True, strategy=strategy)
    net = fleet.distributed_model(make())
    optimizer = fleet.distributed_optimizer(rule_of(name)(net.parameters()))
    share = slice(fleet.worker_index(), None, 2) if axis == "sharding" else slice(None)
    for inputs, targets in batches():
        F.mse_loss(net(inputs[share]), targets[share]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return fleet.full_state_dict(net)


def every(names: list[str], axis: str) -> list[dict[str, Tensor]]:
    return [ours(name, axis) for name in names]


def every_as_on_a_card(names: list[str], axis: str) -> list[dict[str, Tensor]]:
    """There torch takes tensors in lists by itself, those that are spread, too."""
    with ExitStack() as patches:
        for name in names:
            module = importlib.import_module(f"torch.optim.{name.lower()}")
            if hasattr(module, LISTED):
                patches.enter_context(patch.object(module, LISTED, return_value=(False, True)))
        return every(names, axis)


@pytest.mark.parametrize("axis", CUT)
@pytest.mark.parametrize("names", [[*RULES], [*OTHERS]], ids=["torch", "others"])
def test_rules_are_those_of_a_plain_run(names: list[str], axis: str) -> None:
    start = make().state_dict()
    for name, found in zip(names, world(2).run(every, names, axis)[0], strict=True):
        for key, wanted in plain(rule_of(name)).items():
            moved = (wanted - start[key]).abs().max()
            apart = (found[key] - wanted).abs().max()
            assert moved > 0, name
            assert apart <= ROUNDED.get(name, 1e-3) * moved, (name, key, apart, moved)


@pytest.mark.parametrize("axis", CUT)
def test_rules_are_those_of_a_plain_run_as_a_card_runs_them(axis: str) -> None:
    names = [name for name in RULES if name != "Muon"]  # which has no such form
    start = make().state_dict()
    found = world(2).run(every_as_on_a_card, names, axis)[0]
    for name, moved_to in zip(names, found, strict=True):
        for key, wanted in plain(rule_of(name)).items():
            moved = (wanted - start[key]).abs().max()
            assert (moved_to[key] - wanted).abs().max() <= 1e-3 * moved, (name, key)


def sharpness_aware(parameters: Iterable[Tensor]) -> Any:
    library = importlib.import_module("pytorch_optimizer")
    return library.SAM([*parameters], torch.optim.SGD, rho=0.05, lr=0.05)


def in_two_steps(net: nn.Module, optimizer: Any, share: slice) -> dict[str, Tensor]:
    for inputs, targets in batches():
        F.mse_loss(net(inputs[share]), targets[share]).backward()
        optimizer.first_step(zero_grad=True)
        F.mse_loss(net(inputs[share]), targets[share]).backward()
        optimizer.second_step(zero_grad=True)
    return fleet.full_state_dict(net) if dist.is_initialized() else net.state_dict()


def sharpness_aware_here(axis: str | None) -> dict[str, Tensor]:
    strategy = fleet.DistributedStrategy()
    for flag, value in CUT.get(axis or "", {}).items():
        setattr(strategy, flag, value)
    fleet.init(is_collective=True, strategy=strategy)
    net = fleet.distributed_model(make())
    optimizer = fleet.distributed_optimizer(sharpness_aware(net.parameters()))
    share = slice(None) if axis else slice(fleet.worker_index(), None, 2)
    return in_two_steps(net, optimizer, share)


@pytest.mark.parametrize("axis", [None, "tp"])
def test_methods_that_only_one_rule_has_see_whole_tensors(axis: str | None) -> None:
    net = make()
    wanted = in_two_steps(net, sharpness_aware(net.parameters()), slice(None))
    found = world(2).run(sharpness_aware_here, axis)[0]
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-6)


def with_noise(net: nn.Module, optimizer: Any, share: slice, seed: int) -> dict[str, Tensor]:
    pairs = batches()
    torch.manual_seed(seed)
    for inputs, targets in pairs:
        F.mse_loss(net(inputs[share]), targets[share]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return fleet.full_state_dict(net) if dist.is_initialized() else net.state_dict()


def with_noise_here(axis: str) -> tuple[dict[str, Tensor], Tensor]:
    strategy = fleet.DistributedStrategy()
    for flag, value in CUT[axis].items():
        setattr(strategy, flag, value)
    fleet.init(is_collective=True, strategy=strategy)
    net, number = fleet.distributed_model(make()), fleet.worker_index()
    rule = from_pytorch_optimizer("gravity")(net.parameters())
    share = slice(number, None, 2) if axis == "sharding" else slice(None)
    optimizer = fleet.distributed_optimizer(rule)
    return with_noise(net, optimizer, share, 7 + number), torch.rand(3)


@pytest.mark.parametrize("axis", CUT)
def test_workers_draw_the_numbers_of_the_first(axis: str) -> None:
    """A rule that begins with random momentum; each worker has a seed of its own."""
    net = make()
    rule = from_pytorch_optimizer("gravity")(net.parameters())
    wanted, next_ones = with_noise(net, rule, slice(None), 7), torch.rand(3)
    first, second = world(2).run(with_noise_here, axis)
    for key, value in wanted.items():
        torch.testing.assert_close(first[0][key], value, rtol=1e-4, atol=1e-6)
    torch.manual_seed(8)
    assert torch.equal(second[1], torch.rand(3)), "its own go on as if nothing had been drawn"
    assert torch.equal(first[1], next_ones)


def refused(axis: str) -> str:
    OTHERS["kron"] = partial(from_pytorch_optimizer, "kron")
    with pytest.raises(fleet.PlanError) as caught:
        ours("kron", axis)
    return str(caught.value)


@pytest.mark.parametrize("axis", CUT)
def test_a_rule_that_cannot_update_cut_parameters_is_named(axis: str) -> None:
    """It turns parameters in place into other shapes, of which nobody knows the parts."""
    for said in world(2).run(refused, axis):
        assert said.startswith("Kron cannot update parameters that are cut over workers")
        assert f"turn off the strategy that cuts ({axis})" in said

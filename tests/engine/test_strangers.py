"""Optimizers that step past the plan: stopped where a flag would not be in force, else let work."""

import copy
import importlib
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world
from tests.engine.training import data, net, spread, weights
from tests.programs import python
from tests.strategies.paddle import start

LOCAL = {"localsgd": True, "localsgd_configs": {"k_steps": 2}}
CLIP = {"clip": True, "clip_configs": {"limit": 0.01}}
LARS = {"lars": True}
MERGE = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": 2}}
SHARD = {"sharding": True, "sharding_configs": {"stage": 2}}
AT_UPDATE: dict[str, dict[str, Any]] = {
    "localsgd": LOCAL,
    "adaptive_localsgd": {"adaptive_localsgd": True},
    "clip": CLIP,
    "gradient_merge": MERGE,
    "fp16_allreduce": {"fp16_allreduce": True},
    "dgc": {"dgc": True},
    "lars": LARS,
    "amp": {"amp": True},
    "sharding": SHARD,
    "nccl_comm_num": {"nccl_comm_num": 2},
}
STOPPED = r"past the plan.*{}.*optimizer = fleet\.distributed_optimizer\(optimizer\)"


def fresh(**settings: Any) -> None:
    """Begin another job in this process."""
    roles.stop()
    start(**settings)


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batch() -> tuple[Tensor, Tensor]:
    """This worker's samples, which are not those of others."""
    inputs, targets = data()
    return inputs[fleet.worker_index() :: 2], targets[fleet.worker_index() :: 2]


def train(model: nn.Module, optimizer: Any, steps: int = 3) -> Tensor:
    """The loop of anybody who uses torch."""
    inputs, targets = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return whole(model)


def whole(model: nn.Module) -> Tensor:
    state = fleet.full_state_dict(model, everywhere=True)
    return torch.cat([value.flatten() for value in state.values()])


def strange(flag: str) -> None:
    """Train under a flag with an optimizer that fleetx never saw."""
    fresh(**AT_UPDATE[flag])
    model = fleet.distributed_model(net())
    before = whole(model)
    with pytest.raises(fleet.PlanError, match=STOPPED.format(flag)):
        train(model, sgd(model))
    assert torch.equal(whole(model), before)


@world(2)
def test_a_step_that_fleetx_never_saw_is_stopped() -> None:
    for flag in AT_UPDATE:
        strange(flag)


@world(1)
def test_one_worker_is_no_exception() -> None:
    for flag in ("clip", "gradient_merge", "lars"):
        strange(flag)


@world(2)
def test_the_optimizer_that_was_given_steps_through_the_plan() -> None:
    for settings in ({}, LOCAL, CLIP, LARS, SHARD):
        compare_with_given(settings)


def compare_with_given(settings: dict[str, Any]) -> None:
    found = []
    for alias in (False, True):
        fresh(**settings)
        model = fleet.distributed_model(net())
        given = sgd(model)
        distributed = fleet.distributed_optimizer(given)
        found.append(train(model, given if alias else distributed))
        assert spread(found[-1]) == 0
    assert torch.equal(found[0], found[1])
    plain = net()
    assert not torch.equal(found[0], train_plain(plain, sgd(plain)))


def train_plain(model: nn.Module, optimizer: Optimizer) -> Tensor:
    inputs, targets = batch()
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return weights(model)


@world(1)
def test_the_optimizer_that_was_given_learns_how_to_go_backward() -> None:
    start(**MERGE)
    model = fleet.distributed_model(net())
    given = sgd(model)
    distributed = fleet.distributed_optimizer(given)
    with pytest.raises(RuntimeError, match=r"optimizer\.backward\(loss\) instead"):
        train(model, given)
    model.zero_grad()
    before = whole(model)
    inputs, targets = data()
    for at in range(2):
        given.zero_grad()
        distributed.backward(F.cross_entropy(model(inputs), targets))
        given.step()
        assert torch.equal(whole(model), before) is (at == 0), "every second batch is an update"


@world(1)
def test_a_step_of_the_given_one_that_goes_round_is_stopped() -> None:
    start(**CLIP)
    model = fleet.distributed_model(net())
    given = sgd(model)
    around = given.step
    fleet.distributed_optimizer(given)
    train(model, given)
    inputs, targets = data()
    F.cross_entropy(model(inputs), targets).backward()
    by_class: Any = partial(type(given).step, given)
    for step in (around, by_class, copy.copy(given).step):
        with pytest.raises(fleet.PlanError, match=STOPPED.format("clip")):
            step()


@world(1)
@pytest.mark.parametrize("late", [False, True], ids=["scheduler first", "scheduler last"])
@pytest.mark.parametrize("settings", [CLIP, LARS], ids=["kept", "replaced"])
def test_scheduler_scaler_and_state_of_the_given_one(settings: dict[str, Any], late: bool) -> None:
    found = []
    for alias in (False, True):
        fresh(**settings)
        model = fleet.distributed_model(net())
        given = sgd(model)
        if not late:
            scheduler = torch.optim.lr_scheduler.StepLR(given, 1, 0.5)
        distributed = fleet.distributed_optimizer(given)
        used: Any = given if alias else distributed
        if late:
            scheduler = torch.optim.lr_scheduler.StepLR(used, 1, 0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        inputs, targets = data()
        for _ in range(3):
            scaler.scale(F.cross_entropy(model(inputs), targets)).backward()
            scaler.step(used)
            scaler.update()
            scheduler.step()
            used.zero_grad()
            used.load_state_dict(copy.deepcopy(used.state_dict()))
        assert distributed.param_groups[0]["lr"] == 0.1 / 8
        assert given.param_groups is distributed.param_groups
        assert given.state is distributed.state
        assert len(given.state) == 6
        found.append(weights(model))
    assert torch.equal(found[0], found[1])


@world(2)
def test_plain_data_parallel_follows_torch_with_an_optimizer_of_its_own() -> None:
    """Running statistics included, which torch sends with each forward."""
    found = []
    for ours in (False, True):
        start()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        runs: nn.Module = (
            fleet.distributed_model(model) if ours else nn.parallel.DistributedDataParallel(model)
        )
        optimizer = sgd(model)
        inputs, targets = batch()
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(runs(inputs), targets).backward()
            optimizer.step()
        found.append({name: value.clone() for name, value in model.state_dict().items()})
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


@world(2)
def test_parameters_that_the_layout_replaced_are_still_known() -> None:
    degree = {"tensor_parallel_degree": 2, "column": ["0"], "row": ["2"]}
    for settings in (SHARD, {"tensor_parallel": True, "tensor_parallel_configs": degree}):
        fresh(**settings)
        model = net()
        optimizer = sgd(model)
        fleet.distributed_model(model)
        with pytest.raises(fleet.PlanError, match=r"the layout, which has replaced '0\.weight'"):
            optimizer.step()


@world(1)
def test_other_models_are_nobody_s_business() -> None:
    """The plain discriminator of a GAN, and a wrapped optimizer inside of the distributed one."""
    from tests.libraries import timm  # here: it takes seconds, and other tests need none of it

    optim = importlib.import_module(f"{timm.__name__}.optim")

    start(**CLIP)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(optim.Lookahead(sgd(model), k=2))
    judge = net(1)
    begun, judged = weights(judge), sgd(judge)
    before = weights(model)
    train(model, optimizer)
    inputs, targets = data()
    F.cross_entropy(judge(inputs), targets).backward()
    judged.step()
    assert not torch.equal(weights(judge), begun)
    assert not torch.equal(weights(model), before)
    with pytest.raises(fleet.PlanError, match=STOPPED.format("clip")):
        optim.create_optimizer_v2(model, "lookahead_adamw", lr=0.1).step()


SCRIPT = """
import torch
import fleetx as fleet
strategy = fleet.DistributedStrategy()
strategy.clip = True
fleet.init(is_collective=True, strategy=strategy)
model = fleet.distributed_model(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).mean().backward()
optimizer.step()
"""


def test_fleetx_check_stops_with_the_sentence(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [
        python(),
        "-m",
        "fleetx",
        "check",
        "--gpus",
        "none",
        "--workers",
        "1",
        str(script),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert (
        "at an update: strategy.clip. Call optimizer = fleet.distributed_optimizer" in done.stderr
    )

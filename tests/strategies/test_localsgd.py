"""LocalSGD and its adaptive sister: Paddle's trajectories, and silence between meetings."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F

import fleetx as fleet
from fleetx.strategies.localsgd.adaptive import interval
from fleetx.testing import world
from tests.engine.training import data, net, spread, weights
from tests.strategies.paddle import check_two_workers, golden, start


def test_trajectories_are_those_of_paddle() -> None:
    configs = golden("dist_localsgd_pure_sgd")["strategy"]["localsgd_configs"]
    check_two_workers("dist_localsgd_pure_sgd", localsgd=True, localsgd_configs=configs)
    check_two_workers("dist_localsgd_pure_k1", localsgd=True)


def test_adaptive_trajectories_are_those_of_paddle() -> None:
    check_two_workers("dist_adaptive_localsgd_sgd_k1", adaptive_localsgd=True)


def exchanges(
    steps: int, rate: float = 0.1, **settings: Any
) -> tuple[list[int], list[float], torch.Tensor]:
    """Collectives in each step, and how far the workers are apart after it."""
    start(**settings)
    model = fleet.distributed_model(net(seed=fleet.worker_index()))
    assert spread(weights(model)) == 0, "workers start equal"
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=rate))
    inputs, targets = data()
    mine = slice(fleet.worker_index(), None, 2)
    counts, apart = [], []
    for _ in range(steps):
        with CommDebugMode() as counted:
            optimizer.minimize(F.cross_entropy(model(inputs[mine]), targets[mine]))
        counts.append(counted.get_total_counts())
        apart.append(spread(weights(model)))
    return counts, apart, weights(model)


def test_between_meetings_nothing_is_exchanged_at_all() -> None:
    settings = {"localsgd": True, "localsgd_configs": {"k_steps": 3, "begin_step": 2}}
    for counts, apart, _ in world(2).run(exchanges, 9, **settings):
        assert counts == [1, 1, 0, 0, 1, 0, 0, 1, 0]
        assert [distance > 0 for distance in apart] == [count == 0 for count in counts]


def test_adaptive_meetings_follow_the_interval() -> None:
    settings = {
        "adaptive_localsgd": True,
        "adaptive_localsgd_configs": {"init_k_steps": 9, "begin_step": 2},
    }
    for counts, apart, _ in world(2).run(exchanges, 20, **settings):
        assert counts[:2] == [1, 1]
        assert counts[2:10] == [0] * 8, "nine updates after the second one"
        assert counts[10] == 1
        # By then sqrt(loss / first loss * 9) is 3 or less: they meet more often.
        assert 1 in counts[11:14]
        assert [distance > 0 for distance in apart] == [count == 0 for count in counts]


@world(2)
def test_running_statistics_are_averaged_too() -> None:
    start(localsgd=True, localsgd_configs={"k_steps": 2})
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    mine = slice(fleet.worker_index(), None, 2)
    for step in range(1, 6):
        optimizer.minimize(F.cross_entropy(model(inputs[mine]), targets[mine]))
        assert (spread(model.get_buffer("1.running_mean")) == 0) == (step % 2 == 1)


def continued(parts: list[int], name: str, configs: dict[str, Any]) -> torch.Tensor:
    """Train in parts; every part starts from the state of the one before."""
    state: dict[str, Any] | None = None
    for part in parts:
        from fleetx import roles

        roles.stop()
        start(**{name: True, f"{name}_configs": configs})
        model = fleet.distributed_model(net())
        optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        if state is not None:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        inputs, targets = data()
        mine = slice(fleet.worker_index(), None, 2)
        for _ in range(part):
            optimizer.minimize(F.cross_entropy(model(inputs[mine]), targets[mine]))
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return weights(model)


@pytest.mark.parametrize(
    ("name", "configs"),
    [
        ("localsgd", {"k_steps": 3, "begin_step": 2}),
        ("adaptive_localsgd", {"init_k_steps": 5, "begin_step": 2}),
    ],
)
def test_counters_survive_a_restart(name: str, configs: dict[str, Any]) -> None:
    whole = world(2).run(continued, [12], name, configs)
    parts = world(2).run(continued, [4, 5, 3], name, configs)
    for expected, found in zip(whole, parts, strict=True):
        assert torch.equal(found, expected)


@world(2)
def test_adaptive_needs_the_loss() -> None:
    start(adaptive_localsgd=True)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    F.cross_entropy(model(inputs), targets).backward()
    with pytest.raises(fleet.PlanError, match=r"loss\.backward\(\) hides it"):
        optimizer.step()


@pytest.mark.parametrize(
    ("k", "first", "now", "expected"),
    [
        (4, (2.0, 0.1), (2.0, 0.1), 2),  # ceil(sqrt(4))
        (4, (2.0, 0.1), (0.5, 0.1), 1),
        (4, (2.0, 0.1), (0.5, 0.01), 4),  # a lower rate allows more time apart
        (16, (1.0, 0.1), (1.0, 0.0001), 16),  # never longer than 16
        (3, (1.0, 0.1), (0.0, 0.1), 1),
        (3, (1.0, 0.1), (-1.0, 0.1), 3),
        (3, (1.0, 0.1), (float("nan"), 0.1), 3),
        (3, (1.0, 0.1), (1.0, 0.0), 3),
        (3, (0.0, 0.1), (1.0, 0.1), 3),
    ],
)
def test_the_interval(
    k: int, first: tuple[float, float], now: tuple[float, float], expected: int
) -> None:
    assert interval(k, first, now) == expected


@world(1)
def test_one_worker_meets_nobody() -> None:
    start(localsgd=True)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    with CommDebugMode() as counted:
        optimizer.minimize(F.cross_entropy(model(inputs), targets))
    assert counted.get_total_counts() == 0


def meetings_with_an_overflow(name: str, configs: dict[str, Any]) -> list[float]:
    """How far the workers are apart after each batch; one of them overflows once."""
    start(**{name: True, f"{name}_configs": configs, "amp": True})
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    mine = slice(fleet.worker_index(), None, 2)
    apart = []
    for batch in range(9):
        loss = F.cross_entropy(model(inputs[mine]), targets[mine])
        overflows = batch == 3 and fleet.worker_index() == 1
        optimizer.minimize(loss * float("inf") if overflows else loss)
        apart.append(spread(weights(model)))
    return apart


@pytest.mark.parametrize(
    ("name", "configs"),
    [("localsgd", {"k_steps": 2}), ("adaptive_localsgd", {"init_k_steps": 2})],
)
def test_a_worker_that_skips_an_update_still_comes_to_the_meetings(
    name: str, configs: dict[str, Any]
) -> None:
    for apart in world(2).run(meetings_with_an_overflow, name, configs):
        assert apart[0] == apart[2] == apart[4] == 0
        assert apart[3] > 0


@world(2)
@pytest.mark.parametrize("name", ["localsgd", "adaptive_localsgd"])
def test_layers_that_are_frozen_between_two_meetings_meet(name: str) -> None:
    number = "k_steps" if name == "localsgd" else "init_k_steps"
    start(**{name: True, f"{name}_configs": {number: 4, "begin_step": 1}})
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    frozen = next(model.children())
    for step in range(3):
        frozen.requires_grad_(step < 2)
        mine = inputs[fleet.worker_index() :: 2], targets[fleet.worker_index() :: 2]
        optimizer.minimize(F.cross_entropy(model(mine[0]), mine[1]))
    assert spread(weights(model)) > 0, "they are apart before they meet"
    optimizer.load_state_dict(optimizer.state_dict())
    for _ in range(4):
        optimizer.minimize(F.cross_entropy(model(mine[0]), mine[1]))
        if spread(weights(model)) == 0:
            return
    raise AssertionError("a frozen layer was not averaged")

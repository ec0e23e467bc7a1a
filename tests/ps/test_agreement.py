"""Workers of a job with servers that would drift apart are told who differs in what."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx import roles
from fleetx.nn import SGD, SparseEmbedding, Uniform
from fleetx.ps.worker import worker as workers
from fleetx.testing import world
from tests.ps.team import TOKEN, team

ASYNC: dict[str, Any] = {"a_sync": True, "a_sync_configs": {"k_steps": 0}}
GEO: dict[str, Any] = {"a_sync": True, "a_sync_configs": {"k_steps": 2}}


class Net(nn.Module):
    def __init__(self, dim: int = 4, **options: Any) -> None:
        super().__init__()
        self.words = SparseEmbedding(dim, name="words", pooling="sum", **options)
        self.head = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids)[:, :4]).squeeze(-1)


class Job:
    """What one worker sets; ``other`` is True on the one that differs."""

    def __init__(self, endpoints: list[str], index: int, settings: dict[str, Any]) -> None:
        self._settings = settings
        strategy = fleet.DistributedStrategy()
        for name, value in settings.get("strategy", {}).items():
            setattr(strategy, name, value)
        fleet.init(
            fleet.UserDefinedRoleMaker(
                current_id=index, role=fleet.Role.WORKER, worker_num=2, server_endpoints=endpoints
            ),
            strategy=strategy,
        )

    def train(self, steps: int) -> None:
        torch.manual_seed(self._settings.get("seed", 0))
        fleet.init_worker()
        plain = Net(**self._settings.get("table", {}))
        plain.head.weight.requires_grad_(not self._settings.get("frozen", False))
        model = fleet.distributed_model(plain)
        rule = self._settings.get("rule", torch.optim.SGD)
        options = {"lr": 0.1} | self._settings.get("options", {})
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = fleet.distributed_optimizer(rule(trained, **options))
        schedule = self._settings.get("schedule", lambda optimizer: lambda: None)(optimizer)
        for _ in range(steps):
            optimizer.minimize(model(torch.arange(12).reshape(4, 3)).square().mean())
            schedule()


def heard(endpoints: list[str], kind: str, index: int | None = None, steps: int = 4) -> str:
    """What a worker hears whose job may differ from the other's; nothing if it may train."""
    roles.stop()
    fleet.init(is_collective=True)
    index = fleet.worker_index() if index is None else index
    roles.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEETX_PS_TOKEN", TOKEN.decode())
        try:
            Job(endpoints, index, KINDS[kind][index]).train(steps)
            fleet.stop_worker()
        except (ValueError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            workers.stop(finished=False)
            roles.stop()
    return ""


def exponential(optimizer: Any) -> Callable[[], None]:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9).step


def calmer(optimizer: Any) -> Callable[[], None]:
    return lambda: optimizer.param_groups[0].update(momentum=0.8)


def decayed(optimizer: Any) -> Callable[[], None]:
    """As from a checkpoint: the schedule is not at its beginning."""
    made = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    optimizer.param_groups[0]["lr"] = 0.01
    return made.step


OWN_RULE: dict[str, Any] = {"table": {"rule": SGD(0.1)}, "options": {"momentum": 0.9}}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "optimizer": ({}, {"rule": torch.optim.Adam}),
    "lr": ({}, {"options": {"lr": 0.2}}),
    "lr, asynchronous": ({"strategy": ASYNC}, {"strategy": ASYNC, "options": {"lr": 0.2}}),
    "lr, copies": ({"strategy": GEO}, {"strategy": GEO, "options": {"lr": 0.2}}),
    "rule, copies": ({"strategy": GEO}, {"strategy": GEO, "rule": torch.optim.Adagrad}),
    "mode": ({}, {"strategy": ASYNC}),
    "copies": ({"strategy": ASYNC}, {"strategy": GEO}),
    "k_steps": (
        {"strategy": GEO},
        {"strategy": {"a_sync": True, "a_sync_configs": {"k_steps": 3}}},
    ),
    "half": (
        {"strategy": ASYNC},
        {"strategy": {"a_sync": True, "a_sync_configs": {"k_steps": 0, "half_async": True}}},
    ),
    "copies or not": ({"strategy": GEO}, {}),
    "clip": ({}, {"strategy": {"clip": True}}),
    "width": ({"strategy": ASYNC}, {"strategy": ASYNC, "table": {"dim": 5}}),
    "first rows": (
        {"strategy": ASYNC},
        {"strategy": ASYNC, "table": {"initializer": Uniform(-0.5, 0.5)}},
    ),
    "frozen": ({"frozen": True}, {"frozen": True, "seed": 1}),
    "rule of a table": (OWN_RULE, OWN_RULE | {"table": {"rule": SGD(0.2)}}),
}
EXPECTED = {
    "optimizer": "the optimizer is",
    "lr": "lr of group 0 is",
    "lr, asynchronous": "lr of group 0 is",
    "lr, copies": "lr of group 0 is",
    "rule, copies": "the optimizer is",
    "mode": "strategy.a_sync is",
    "copies": "a_sync_configs['k_steps'] is",
    "k_steps": "a_sync_configs['k_steps'] is",
    "half": "a_sync_configs['half_async'] is",
    "copies or not": "strategy.a_sync is",
    "clip": "strategy.clip is",
    "width": "dim is",
    "first rows": "initializer.",
    "frozen": "what is in 'head.weight', which the optimizer does not have, is ",
    "rule of a table": "rule.lr is",
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_worker_that_differs_is_refused_and_nobody_waits_for_it(kind: str) -> None:
    with team(1, 2, grace=0.5) as here:
        told = world(2, timeout=120).run(heard, here.endpoints, kind)
    refused = [text for text in told if EXPECTED[kind] in text]
    assert len(refused) == 1, told
    assert "worker 0" in refused[0]
    assert "worker 1" in refused[0]
    named = "_configs[" in refused[0]
    assert named == ("_configs[" in EXPECTED[kind]), "not what only one of them could set"
    (other,) = [text for text in told if text is not refused[0]]
    assert other == "" or "is dead, and synchronous training cannot go on" in other


SCHEDULED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one schedule": ({"schedule": exponential}, {}),
    "one schedule, asynchronous": ({"strategy": ASYNC, "schedule": exponential},) * 2,
    "seeds of what servers bring": ({}, {"seed": 1}),
    "frozen alike": ({"frozen": True}, {"frozen": True}),
    "both schedules": ({"schedule": exponential}, {"schedule": exponential}),
    "started again from a save": (
        {"strategy": ASYNC, "schedule": exponential},
        {"strategy": ASYNC, "schedule": decayed},
    ),
    "started again with other numbers": (
        {"strategy": ASYNC},
        {"strategy": ASYNC, "options": {"lr": 0.3}},
    ),
    "momentum": (OWN_RULE | {"schedule": calmer},) * 2,
}
KINDS |= SCHEDULED


def test_an_update_of_all_workers_has_one_rate() -> None:
    with team(1, 2, grace=0.5) as here:
        told = world(2, timeout=120).run(heard, here.endpoints, "one schedule")
    for text in told:
        # Either table may be the first whose pushes of both workers are there.
        assert re.search(
            r"have drifted apart: at update 2 of table '(dense-0|words)' the learning rate is", text
        )
        assert "0.09 on worker 0" in text
        assert "0.1 on worker 1" in text


def test_schedules_on_all_workers_and_of_each_worker_alone_where_nobody_waits() -> None:
    for kind in ("both schedules", "one schedule, asynchronous"):
        with team(1, 2) as here:
            assert world(2, timeout=120).run(heard, here.endpoints, kind) == ["", ""]


def test_what_servers_bring_may_begin_otherwise_and_what_nobody_trains_alike() -> None:
    for kind in ("seeds of what servers bring", "frozen alike"):
        with team(1, 2) as here:
            assert world(2, timeout=120).run(heard, here.endpoints, kind) == ["", ""]


def test_what_servers_are_told_once_may_not_change() -> None:
    with team(1, 2, grace=0.5) as here:
        told = world(2, timeout=120).run(heard, here.endpoints, "momentum")
    assert all("momentum of group 0 of the optimizer was 0.9 when" in text for text in told)


def in_turns(endpoints: list[str]) -> list[str]:
    """A worker that is started again and again."""
    same = "one schedule, asynchronous"
    told = [heard(endpoints, same, 1), heard(endpoints, same, 1)]
    told.append(heard(endpoints, "started again from a save", 1))
    told.append(heard(endpoints, "started again with other numbers", 1))
    return told


def test_a_worker_may_be_started_again_with_the_same_numbers() -> None:
    with team(1, 2) as here:
        stays = here.worker(0)
        stays.client.call_all({"method": "rest", "resting": True})
        told = world(1, timeout=120).run(in_turns, here.endpoints)[0]
        stays.stop()
    assert told[:3] == ["", "", ""]
    assert "lr of group 0 is 0.1 on worker 1 and 0.3 on worker 1, started again" in told[3]

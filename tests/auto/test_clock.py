"""Operators of models of others are called again on their own shapes, each kind once."""

from dataclasses import replace
from math import isnan
from typing import Any

import pytest
import torch
from torch import nn

import fleetx as fleet
from fleetx.auto import clock
from fleetx.auto.clock import OperatorClock
from fleetx.auto.cluster import Cluster, Device, Link
from fleetx.auto.estimate import estimate
from fleetx.plan.accounts import Accounts
from fleetx.plan.compose import compose
from fleetx.plan.subject import Subject
from fleetx.plan.work import Work
from tests.libraries import torchvision

CPU = torch.device("cpu")
WORKER = Device(
    kind="cpu",
    memory_gigabytes=1,
    teraflops={"product 32": 0.01},
    memory_gigabytes_per_second=1,
    microseconds_per_kernel=1,
)


def subject(model: nn.Module, sample: Any, timed: OperatorClock | None) -> Subject:
    return Subject(model=model, sample=sample, clock=timed)


def accounts(model: nn.Module, sample: Any, timed: OperatorClock | None = None) -> Accounts:
    plan = compose(fleet.DistributedStrategy().request(), 1)
    return Accounts(plan, subject(model, sample, timed))


def work(model: nn.Module, sample: Any) -> Work:
    found = accounts(model, sample, OperatorClock(CPU, WORKER)).share(0).work
    assert found is not None
    return found


def test_every_operator_of_a_resnet_is_measured_and_no_view_is() -> None:
    found = work(torchvision.models.resnet18(num_classes=4), torch.randn(2, 3, 32, 32))
    moves = found.moved > 0
    assert (found.forward_seconds[moves] >= 0).all(), "no number is missing"
    assert found.forward_seconds.sum() > 0
    assert (found.forward_seconds[~moves] == 0).all()
    products = found.operations > 0
    assert (found.backward_seconds[products] > 0).all(), "all its layers are trained"


def test_equal_calls_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = OperatorClock._measured

    def measured(self: OperatorClock, called: Any, wanted: Any) -> tuple[float, float]:
        calls.append(str(called.operator))
        return real(self, called, wanted)

    monkeypatch.setattr(OperatorClock, "_measured", measured)
    work(nn.Sequential(*[nn.Linear(4, 4) for _ in range(5)]), torch.ones(2, 4))
    # The first reads a batch, which wants no gradient; the others read what wants one.
    assert calls.count("aten.addmm.default") == 2


def test_frozen_layers_take_no_backward() -> None:
    model = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128))
    model[0].requires_grad_(False)
    found = work(model, torch.ones(64, 128))
    first, second = found.backward_seconds[found.operations > 0]
    assert first == 0
    assert second > 0


def test_what_cannot_be_called_again_is_reckoned(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> float:
        raise RuntimeError("an index out of range")

    monkeypatch.setattr(clock, "_on_cpu", fails)
    told = accounts(nn.Linear(4, 4), torch.ones(2, 4), OperatorClock(CPU, WORKER))
    found = told.share(0).work
    assert found is not None
    assert all(isnan(seconds) for seconds in found.forward_seconds[found.moved > 0])
    link = Link(gigabytes_per_second=1, microseconds=1)
    cluster = Cluster(nodes=1, devices_per_node=1, device=WORKER, inside=link, outside=link)
    plain = estimate(accounts(nn.Linear(4, 4), torch.ones(2, 4)), cluster)
    assert estimate(told, cluster).seconds == plain.seconds > 0


def test_operators_take_what_they_take_beside_the_other_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []

    def counted(call: Any) -> float:
        threads.append(torch.get_num_threads())
        return 1.0

    monkeypatch.setattr(clock, "_on_cpu", counted)
    monkeypatch.setattr(OperatorClock, "_calls", (0.0, 0.0))
    before = torch.get_num_threads()
    crowded = OperatorClock(CPU, replace(WORKER, threads=before + 1, crowding=2.5))
    found = accounts(nn.Linear(4, 4), torch.ones(2, 4), crowded).share(0).work
    assert found is not None
    assert (found.forward_seconds[found.moved > 0] == 2.5).all()
    assert set(threads) == {before + 1}
    assert torch.get_num_threads() == before


def test_what_the_host_takes_for_any_call_is_no_part_of_an_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock, "_on_cpu", lambda call: 7.0)
    monkeypatch.setattr(OperatorClock, "_calls", (2.0, 3.0))
    found = work(nn.Linear(4, 4), torch.ones(2, 4))
    assert found.forward_seconds[found.operations > 0].tolist() == [5.0]
    assert found.backward_seconds[found.operations > 0].tolist() == [4.0]


def test_an_operator_as_small_as_a_call_takes_nothing_besides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock, "_on_cpu", lambda call: 7.0)
    found = work(nn.Linear(4, 4), torch.ones(2, 4))
    assert not found.forward_seconds.any()
    assert not found.backward_seconds.any()

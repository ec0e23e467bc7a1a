"""fleet.profile on one and two workers: the user's model stays what it is."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx.profiling.profile import Profile
from fleetx.testing import world

QUICK: dict[str, Any] = {"steps": 2, "warmup": 1, "criterion": nn.functional.mse_loss}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1))


def pairs(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    return [(torch.ones(4, 16), torch.zeros(4, 1)) for _ in range(count)]


def profiled(**more: Any) -> Profile:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return fleet.profile(model, optimizer, fleet.DistributedStrategy(), pairs(), **QUICK, **more)


def untouched(out: str) -> list[str]:
    """Weights, the state of the optimizer and random numbers go on as if nothing had happened."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    strategy = fleet.DistributedStrategy()
    drawn = torch.get_rng_state()
    found = fleet.profile(model, optimizer, strategy, pairs(), **QUICK, out=out)
    assert not optimizer.state
    assert torch.equal(drawn, torch.get_rng_state())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())
    assert sum(found.parts.values()) == pytest.approx(found.step)
    assert [worker.rank for worker in found.workers] == [*range(fleet.worker_num())]
    assert found.tries is not None
    return sorted({one.flag for one in found.tries.tried})


def test_one_worker(tmp_path: Path) -> None:
    (tried,) = world(1).run(untouched, str(tmp_path / "found"))
    assert tried == ["amp"]
    names = {path.name for path in (tmp_path / "found").iterdir()}
    assert names == {f"profile.{end}" for end in ("txt", "json", "html", "png")} | {
        "trace-rank0.json.gz"
    }


@pytest.mark.rare
def test_two_workers(tmp_path: Path) -> None:
    first, second = world(2).run(untouched, str(tmp_path / "found"))
    assert first == second
    assert {"amp", "sharding"} <= {*first}
    assert {path.name for path in (tmp_path / "found").glob("trace-*")} == {
        f"trace-rank{rank}.json.gz" for rank in range(2)
    }


def without_tries() -> tuple[bool, dict[str, float]]:
    found = profiled(tries=False)
    return found.tries is None, found.parts


def test_without_tries() -> None:
    ((none, parts),) = world(1).run(without_tries)
    assert none
    assert all(parts[name] > 0 for name in ("data", "forward", "backward", "update"))


def refused(kind: str) -> str:
    strategy = fleet.DistributedStrategy()
    batches: Any = pairs()
    if kind == "auto":
        strategy.auto = True
    elif kind == "triples":
        batches = [(1, 2, 3)]
    elif kind == "once":
        batches = iter(pairs())
    else:
        batches = []
    model = net()
    try:
        fleet.profile(model, torch.optim.SGD(model.parameters()), strategy, batches, **QUICK)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("auto", "strategy.auto = True lets one be chosen; set strategy.auto = False"),
        ("triples", "takes batches that are pairs of inputs and targets"),
        ("none", "got no batch; give it a loader or a list of pairs"),
        ("once", "got too few batches, and they cannot be read again; give it a loader"),
    ],
)
def test_what_cannot_be_measured(kind: str, answer: str) -> None:
    (said,) = world(1).run(refused, kind)
    assert answer in said


class Counted(torch.profiler.profile):
    """torch's profiler, whose beginnings and ends are counted."""

    changes: ClassVar[list[int]] = []

    def start(self) -> None:
        self.changes.append(1)
        super().start()

    def stop(self) -> None:
        self.changes.append(-1)
        super().stop()


def failed_while_traced() -> tuple[str, list[int]]:
    with patch("fleetx.profiling.tracing.profile", Counted):
        return refused("once"), Counted.changes


def test_a_failure_among_the_traced_steps_ends_the_profiler() -> None:
    ((said, changes),) = world(1).run(failed_while_traced)
    assert "too few batches" in said
    assert changes == [1, -1]


def on_a_card() -> tuple[bool, dict[str, float], float, bool]:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters())

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield torch.ones(32, 256), torch.zeros(32, 1)

    found = fleet.profile(model, optimizer, fleet.DistributedStrategy(), batches(), **QUICK)
    (worker,) = found.workers
    assert worker.traced is not None
    named = {one.flag for one in found.tries.tried} if found.tries else set()
    card = dict(worker.traced.card or {})
    return worker.on_card, card, found.step, {"amp", "compile"} <= named


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_card() -> None:
    is_card, card, step, tried = on_a_card()  # workers of tests have no card
    assert is_card
    assert tried
    assert all(card[name] > 0 for name in ("forward", "backward", "update"))
    assert step > 0

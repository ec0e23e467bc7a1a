"""``fleet.log`` reaches the trackers, from worker 0 alone, and nothing is lost."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import roles
from fleetx.api import session
from fleetx.plan.error import PlanError
from fleetx.testing import world
from fleetx.testing.limits import stretched
from fleetx.tracking import TensorBoard
from tests.launch.conftest import heed_signals
from tests.programs import fleetrun

Curves = dict[str, list[tuple[int, float]]]


class Kept:
    """A tracker of a script's own."""

    def __init__(self) -> None:
        self.curves: Curves = {}
        self.closed = False

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.curves.setdefault(name, []).append((step, value))

    def close(self) -> None:
        self.closed = True


def train(updates: int, **settings: Any) -> list[float]:
    """A small job that logs its loss; ``settings`` are those of ``fleet.init``."""
    fleet.init(is_collective=True, **settings)
    torch.manual_seed(fleet.worker_index())
    model = fleet.distributed_model(nn.Linear(4, 2))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    losses = []
    for _ in range(updates):
        loss = F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 2, (8,)))
        optimizer.minimize(loss)
        fleet.log({"loss": loss})
        losses.append(loss.item())
    roles.stop()
    return losses


def curves(folder: Path) -> Curves:
    """What TensorBoard shows."""
    (one,) = {path.parent for path in folder.rglob("events.*")}
    found = EventAccumulator(str(one)).Reload()
    return {
        name: [(point.step, point.value) for point in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }


def in_folder(folder: str, updates: int) -> list[float]:
    os.chdir(folder)
    return train(updates, trackers=["tensorboard"])


def test_tensorboard_gets_the_numbers_of_worker_0(tmp_path: Path) -> None:
    losses = world(2).run(in_folder, str(tmp_path), 12)
    found = curves(tmp_path / "runs")
    steps, values = zip(*found["loss"], strict=True)
    assert steps == tuple(range(1, 13))
    assert values == pytest.approx(losses[0])
    assert losses[0] != pytest.approx(losses[1])
    # The last report, at the end, tells of what came after the one before.
    assert [step for step, _ in found["fleetx/step_seconds"]] == [10, 12]
    assert all(value > 0 for _, value in found["fleetx/samples_per_second"])


def kept(updates: int, **settings: Any) -> tuple[Curves, bool]:
    tracker = Kept()
    train(updates, trackers=[tracker], **settings)
    return tracker.curves, tracker.closed


def test_a_tracker_of_the_script_is_used_on_worker_0_and_closed() -> None:
    (first, closed), (second, untouched) = world(2).run(kept, 3, log_every=1)
    assert len(first["loss"]) == len(first["fleetx/memory_bytes"]) == 3
    assert closed
    assert not second
    assert not untouched


def test_exchange_bytes_are_those_that_explain_tells() -> None:
    told = fleet.DistributedStrategy().explain(nn.Linear(4, 2), workers=2).rank(0).sent
    (found, _), _ = world(2).run(kept, 1)
    assert found["fleetx/exchange_bytes"] == [(1, told)]
    assert told > 0


def scaled() -> Curves:
    tracker, strategy = Kept(), fleet.DistributedStrategy()
    strategy.amp = True
    strategy.amp_configs = {"init_loss_scaling": 64.0, "decr_every_n_nan_or_inf": 1}
    fleet.init(is_collective=True, strategy=strategy, trackers=[tracker], log_every=1)
    model = fleet.distributed_model(nn.Linear(2, 1))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for factor in (1.0, float("inf"), 1.0):
        optimizer.minimize(model(torch.ones(2, 2)).mean() * factor)
    roles.stop()
    return tracker.curves


def test_the_loss_scale_and_skipped_updates_are_logged() -> None:
    found = world(2).run(scaled)[0]
    assert found["fleetx/loss_scale"] == [(1, 64.0), (2, 32.0), (3, 32.0)]
    assert found["fleetx/skipped_updates"] == [(1, 0.0), (2, 1.0), (3, 1.0)]


def two_models() -> Curves:
    tracker = Kept()
    fleet.init(is_collective=True, trackers=[tracker], log_every=1)
    for size in (2, 3):
        model = fleet.distributed_model(nn.Linear(size, 1))
        optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        optimizer.minimize(model(torch.ones(2, size)).mean())
    roles.stop()
    return tracker.curves


def test_a_second_model_has_names_of_its_own() -> None:
    found = world(1).run(two_models)[0]
    assert {"fleetx/step_seconds", "fleetx/model_2/step_seconds"} <= found.keys()


def without_wandb() -> str:
    sys.modules["wandb"] = None  # type: ignore[assignment]
    try:
        fleet.init(is_collective=True, trackers=["wandb"])
    except (ModuleNotFoundError, PlanError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        del sys.modules["wandb"]
    return ""


def test_a_missing_package_stops_all_workers_with_the_line_for_pip() -> None:
    first, second = world(2).run(without_wandb)
    assert first.startswith("ModuleNotFoundError")
    assert "pip install wandb" in first
    assert second.startswith("PlanError")
    assert "pip install wandb" in second


class Away(Kept):
    """A service that is away now and then."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        if step % 2:
            raise ConnectionError("no route to host")
        super().log(values, step)


def test_a_tracker_that_fails_ends_no_job(caplog: pytest.LogCaptureFixture) -> None:
    tracker = Away()
    with caplog.at_level(logging.WARNING):
        train(4, trackers=[tracker], log_every=100)
    assert [step for step, _ in tracker.curves["loss"]] == [2, 4]
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "no route to host" in line]) == 1
    assert any("lost the numbers of 2 calls" in line for line in said)


def test_what_is_no_tracker_is_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'tensorboard'"):
        fleet.init(is_collective=True, trackers=["tensorbord"])
    with pytest.raises(TypeError, match=r"method log\(values, step\)"):
        fleet.init(is_collective=True, trackers=[TensorBoard])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"loss=shape \[2\]; take its mean"):
        train_once({"loss": torch.zeros(2)})
    assert not roles.started()


def train_once(values: dict[str, Any]) -> None:
    fleet.init(is_collective=True)
    try:
        fleet.log(values)
    finally:
        roles.stop()


def test_tools_that_look_at_scripts_begin_no_tracker() -> None:
    tracker = Kept()
    session.watches.append(session.Watch())
    try:
        train(2, trackers=[tracker], log_every=1)
    finally:
        session.watches.clear()
    assert not tracker.curves


SCRIPT = """
import signal
from pathlib import Path

import torch
import fleetx as fleet
from fleetx.tracking import TensorBoard

fleet.init(is_collective=True, trackers=[TensorBoard("curves")])
model = fleet.distributed_model(torch.nn.Linear(2, 1))
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(3):
    optimizer.minimize(model(torch.ones(2, 2)).mean())
fleet.log({"mine": 7.0})
Path(f"ready.{fleet.worker_index()}").touch()
while True:
    signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_lost_when_a_job_is_stopped(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    job = subprocess.Popen(
        [*fleetrun("--nproc_per_node", "2"), "train.py"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=heed_signals,  # noqa: PLW1509 - it takes no lock that a thread could hold
    )
    while not all((tmp_path / f"ready.{worker}").exists() for worker in range(2)):
        assert job.poll() is None, "the job ended by itself"
        time.sleep(0.05)
    job.send_signal(number)
    job.wait(stretched(120))
    found = curves(tmp_path / "curves")
    assert found["mine"] == [(3, 7.0)]
    assert [step for step, _ in found["fleetx/step_seconds"]] == [3]

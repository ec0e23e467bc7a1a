"""Checkpoints of several runs in one folder, deaths while one is written, folders nobody shares."""

import logging
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR

import fleetx as fleet
from fleetx.io import load_checkpoint, save_checkpoint, set_checkpoints_aside
from fleetx.io.agreement import CheckpointError
from fleetx.roles import activity
from fleetx.testing import world


class Job:
    """A model with one number, which says whose checkpoint was loaded."""

    def __init__(self, number: float = 0.0) -> None:
        fleet.init(is_collective=True)
        self.model: Any = fleet.distributed_model(nn.Linear(1, 1, bias=False))
        parameters = self.model.parameters()
        self.optimizer = fleet.distributed_optimizer(torch.optim.SGD(parameters, 0.1))
        self.set(number)

    def set(self, number: float) -> None:
        with torch.no_grad():
            self.model.weight.fill_(number)

    def save(self, folder: Path, step: int, **options: Any) -> Path:
        return save_checkpoint(folder, self.model, self.optimizer, step=step, **options)

    def load(self, folder: Path, **options: Any) -> tuple[int, float] | None:
        """The step, and the number."""
        found = load_checkpoint(folder, self.model, self.optimizer, **options)
        return None if found is None else (found["step"], self.model.weight.item())


def names(folder: Path) -> list[str]:
    """Everything that is there, hidden or not."""
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def alone(check: Callable[[Path], None], folder: Path) -> None:
    world(1).run(check, folder)


def begin_anew(folder: Path) -> None:
    old = Job(1.0)
    for step in (24, 28, 32):
        old.save(folder, step, keep=2)
    assert names(folder) == ["checkpoint-28", "checkpoint-32"]
    new = Job(2.0)
    for step in (8, 30):
        with patch.object(logging.getLogger("fleetx.io.saving"), "warning") as said:
            written = new.save(folder, step, keep=3)
        assert said.call_count == (step == 8)
        assert written.is_dir(), "what was just written stays"
        assert Job().load(folder) == (step, 2.0), "and is what a run goes on from"
    assert names(folder) == ["checkpoint-30", "checkpoint-8", "earlier-1"]
    assert names(folder / "earlier-1") == ["checkpoint-28", "checkpoint-32"], "nothing is lost"
    assert Job().load(folder / "earlier-1") == (32, 1.0)
    third = Job(3.0)
    third.save(folder, 30)
    assert names(folder) == ["checkpoint-30", "earlier-1", "earlier-2"]
    assert names(folder / "earlier-2") == ["checkpoint-30", "checkpoint-8"]
    assert Job().load(folder) == (30, 3.0)


def test_a_run_that_begins_anew_does_not_mix_with_an_older_one(tmp_path: Path) -> None:
    alone(begin_anew, tmp_path)


def go_on(folder: Path) -> None:
    for step in (8, 16, 24):
        job = Job()
        job.load(folder)  # each is the heir of the one before
        job.save(folder, step, keep=2)
    assert names(folder) == ["checkpoint-16", "checkpoint-24"]
    back = Job()
    assert back.load(folder / "checkpoint-16") == (16, 0.0)
    back.set(5.0)
    back.save(folder, 20, keep=2)
    assert names(folder) == ["checkpoint-16", "checkpoint-20", "earlier-1"]
    assert names(folder / "earlier-1") == ["checkpoint-24"], "of the future that is given up"
    assert Job().load(folder) == (20, 5.0)
    with pytest.raises(ValueError, match=r"keep=0\) would leave none; keep at least 1"):
        back.save(folder, 21, keep=0)


def test_a_run_that_goes_on_keeps_what_it_went_on_from(tmp_path: Path) -> None:
    alone(go_on, tmp_path)


def start_by_hand(folder: Path) -> None:
    fleet.init(is_collective=True)
    assert set_checkpoints_aside(folder / "none") is None
    Job(1.0).save(folder, 4)
    assert set_checkpoints_aside(folder) == folder / "earlier-1"
    assert Job().load(folder) is None, "a run that dies at once does not go on from another"


def test_checkpoints_can_be_set_aside_before_training(tmp_path: Path) -> None:
    alone(start_by_hand, tmp_path)


class DeathError(BaseException):
    """The process ends here: nothing that catches exceptions sees it."""


class Dying:
    """Counts the changes of folders; at one of them the process dies, before or in the middle."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0
        self.really_rename, self.really_remove = Path.rename, shutil.rmtree

    def remove(self, path: Path, **options: Any) -> None:
        if path.exists() and path.name.startswith((".checkpoint", "checkpoint")):
            self.step(lambda: next(path.glob("*/*")).unlink())  # half of it is gone
        self.really_remove(path, **options)

    def step(self, harm: Callable[[], None]) -> None:
        self.count += 1
        if self.count == self.at:
            harm()
            raise DeathError

    def __enter__(self) -> "Dying":
        def rename(path: Path, target: Path) -> Path:
            self.step(lambda: None)
            return self.really_rename(path, target)

        self.patches: list[Any] = [
            patch.object(Path, "rename", rename),
            patch.object(Path, "replace", rename),
            patch.object(shutil, "rmtree", self.remove),
        ]
        for each in self.patches:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.patches:
            each.stop()


def die_everywhere(root: Path) -> None:
    """Save over a checkpoint; die at the first change of the folder, at the second, and so on."""
    seen = []
    for at in range(1, 20):
        folder, job = root / str(at), Job(1.0)
        job.save(folder, 4)
        job.set(2.0)
        job.save(folder, 8)
        job.set(3.0)
        try:
            with Dying(at):
                job.save(folder, 8)
            break
        except DeathError:
            found = Job().load(folder)
        assert found in {(8, 2.0), (8, 3.0)}, f"after death {at}: {found}, {names(folder)}"
        seen.append(found)
        after = Job()
        after.load(folder)
        after.set(4.0)
        after.save(folder, 9)
        assert names(folder) == ["checkpoint-9"], "nothing is left over"
        assert Job().load(folder) == (9, 4.0)
    assert seen == [(8, 2.0), (8, 2.0), (8, 3.0)], "two renames, and the removal of the old one"


def test_a_checkpoint_that_is_replaced_survives_a_death_at_any_point(tmp_path: Path) -> None:
    alone(die_everywhere, tmp_path)


def die_while_old_ones_go(root: Path) -> None:
    for at in range(1, 20):
        folder, job = root / str(at), Job(1.0)
        job.save(folder, 4, keep=2)
        job.save(folder, 6, keep=2)
        try:
            with Dying(at):
                job.save(folder, 8, keep=1)
            break
        except DeathError:
            left = list(folder.glob("checkpoint-*"))
        for path in left:
            assert Job().load(path) is not None, "whatever has a name is whole"
        expected = 6 if at == 1 else 8
        assert Job().load(folder) == (expected, 1.0)
    assert at > 3, "a rename to the name, two from theirs, and two removals"


def test_an_old_checkpoint_loses_its_name_before_its_files(tmp_path: Path) -> None:
    alone(die_while_old_ones_go, tmp_path)


def save_on_disks_of_their_own(root: Path) -> tuple[str, list[str], str]:
    job = Job()
    folder = root / f"machine{fleet.worker_index()}"
    with pytest.raises(CheckpointError) as first:
        job.save(folder, 1)
    shared = Job()
    shared.save(root / "shared", 1)
    if fleet.is_first_worker():
        shutil.copytree(root / "shared" / "checkpoint-1", folder / "checkpoint-1")
    fleet.util.barrier()
    with pytest.raises(CheckpointError) as second:
        shared.load(folder)
    return str(first.value), names(folder), str(second.value)


def test_machines_that_share_no_folder_hear_of_it_when_they_save(tmp_path: Path) -> None:
    first, second = world(2).run(save_on_disks_of_their_own, tmp_path)
    for saved, left, loaded in (first, second):
        assert "worker 0 does not see what worker 1 wrote there" in saved
        assert "Give a folder that they share" in saved
        assert "manifest.json' cannot be read" in loaded
        assert not [name for name in left if name.startswith(".")], "nothing half done stays"
    assert second[1] == []


def fail_to_write(folder: Path) -> str:
    job = Job()
    job.save(folder, 1)
    part: Any = MultiStepLR(job.optimizer, [3, 5])
    blocked = OSError("no space left on device")
    hurt = patch("fleetx.io.saving.save_tensors", side_effect=blocked)
    if fleet.worker_index() == 1:
        hurt.start()
    try:
        with pytest.raises((OSError, CheckpointError), match="no space left") as error:
            job.save(folder, 2, parts={"schedule": part})
    finally:
        patch.stopall()
    assert job.load(folder) == (1, 0.0), "the one before is as it was"
    with pytest.raises(CheckpointError, match="has 'schedule', which was not saved"):
        job.load(folder, parts={"schedule": part})
    return str(error.value)


def test_a_worker_that_cannot_write_does_not_leave_the_others_waiting(tmp_path: Path) -> None:
    first, second = world(2).run(fail_to_write, tmp_path)
    assert second == "no space left on device"
    assert first == f"worker 1 failed, so all stop: OSError: {second}"
    assert names(tmp_path) == ["checkpoint-1"]


def milestones(folder: Path) -> None:
    job = Job()
    schedule: Any = MultiStepLR(job.optimizer, [2, 4], gamma=0.5)
    job.save(folder, 1, parts={"schedule": schedule, "numbers": schedule})
    with pytest.raises(ValueError, match="has 'step', a name under which"):
        job.save(folder, 2, numbers={"step": 7})
    again = Job()
    heir: Any = MultiStepLR(again.optimizer, [9], gamma=0.1)
    assert again.load(folder, parts={"schedule": heir}) == (1, 0.0)
    rates = []
    for _ in range(4):
        again.optimizer.minimize(again.model(torch.zeros(1, 1)).sum())
        heir.step()
        rates.append(heir.get_last_lr()[0])
    assert rates == pytest.approx([0.1, 0.05, 0.05, 0.025])


def test_numbers_that_are_keys_come_back_as_numbers(tmp_path: Path) -> None:
    alone(milestones, tmp_path)


class Watching:
    """A part of a checkpoint that notes what its process is said to do."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def state_dict(self) -> dict[str, Any]:
        self.seen.append(activity.now()["doing"])
        return {}

    def load_state_dict(self, state_dict: Any) -> None:
        self.seen.append(activity.now()["doing"])


def is_told(folder: Path) -> None:
    job, part = Job(), Watching()
    activity.enter(activity.READING)
    job.save(folder, 1, parts={"part": part})
    job.load(folder, parts={"part": part})
    assert part.seen == ["saving a checkpoint", "loading a checkpoint"]
    assert activity.now()["doing"] == activity.READING


def test_whoever_waits_for_a_worker_hears_that_it_saves(tmp_path: Path) -> None:
    alone(is_told, tmp_path)


def leave_parts_out(folder: Path) -> str:
    job, heard = Job(), list[str]()
    schedule: Any = MultiStepLR(job.optimizer, [2], gamma=0.5)
    parts = {"schedule": schedule, "part": Watching()}
    job.save(folder, 1, parts=parts)
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("fleetx.io").addHandler(handler)
    job.load(folder, parts=parts)
    assert not heard
    job.load(folder, parts={"part": Watching()})
    logging.getLogger("fleetx.io").removeHandler(handler)
    calls: list[Callable[..., Any]] = [job.load, partial(job.save, step=2)]
    for call in calls:
        with pytest.raises(TypeError, match=r"takes as parts .*state_dict\(\).*are for numbers"):
            call(folder, parts={"epoch": 3})
    return " ".join(heard)


def test_parts_that_are_not_named_begin_anew_and_are_told_of(tmp_path: Path) -> None:
    """The schedule began again from its first rate, in silence."""
    (said,) = world(1).run(leave_parts_out, tmp_path)
    assert "has the state of 'schedule', which load_checkpoint(parts=...) does not name" in said

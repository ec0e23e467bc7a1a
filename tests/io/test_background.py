"""Checkpoints that are written while training goes on."""

import subprocess
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import fleetx as fleet
from fleetx.io import finish_checkpoints, load_checkpoint, save_checkpoint, shards
from fleetx.io.agreement import CheckpointError
from fleetx.testing import world
from tests.io.layouts import Run
from tests.programs import python

really_write = shards.write


class Held:
    """A write that waits for a word, so that a test knows what happens before its end."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.thread: threading.Thread | None = None

    def __call__(self, *args: Any) -> None:
        self.thread = threading.current_thread()
        assert self.go.wait(300)
        really_write(*args)


def goes_on(folder: Path) -> None:
    run = Run("z3x2")
    run.train(2)
    before = run.weights()
    with patch("fleetx.io.shards.write", held := Held()):
        save_checkpoint(folder, run.model, run.optimizer, step=2, parts=run.parts, wait=False)
        run.train(2)  # with collectives, while the write stands still
        assert not list(folder.glob("checkpoint-*")), "it is not there before it is whole"
        held.go.set()
        finish_checkpoints()
    assert held.thread is not threading.main_thread()
    assert [path.name for path in folder.iterdir()] == ["checkpoint-2"]
    assert not torch.equal(run.weights(), before)
    load_checkpoint(folder, run.model, run.optimizer, parts=run.parts)
    assert torch.equal(run.weights(), before), "what was, when it was saved"
    for step in (3, 4, 5, 6):
        save_checkpoint(folder, run.model, run.optimizer, step=step, keep=3, wait=False)
    finish_checkpoints()
    assert sorted(path.name for path in folder.iterdir()) == [f"checkpoint-{n}" for n in (4, 5, 6)]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    world(2).run(goes_on, tmp_path)


class Unspeakable:
    """A part whose state cannot be saved, on one worker."""

    def state_dict(self) -> dict[str, Any]:
        return {"lock": threading.Lock()} if fleet.worker_index() == 1 else {}

    def load_state_dict(self, state_dict: Any) -> None: ...


def fails(folder: Path) -> list[str]:
    run = Run("dp2")
    run.train(1)
    save_checkpoint(folder, run.model, run.optimizer, step=1)
    said = []

    def hear(action: Any) -> None:
        with pytest.raises((OSError, TypeError, CheckpointError, RuntimeError)) as error:
            action()
        said.append(str(error.value))

    full = patch("fleetx.io.saving.save_tensors", side_effect=OSError("no space left"))
    if fleet.worker_index() == 1:
        full.start()
    save_checkpoint(folder, run.model, run.optimizer, step=2, wait=False)
    hear(lambda: save_checkpoint(folder, run.model, run.optimizer, step=3))
    patch.stopall()
    parts: Any = {"part": Unspeakable()}
    save_checkpoint(folder, run.model, run.optimizer, step=4, parts=parts, wait=False)
    hear(finish_checkpoints)
    torn = patch(
        "fleetx.io.shards.HuggingFaceStorageWriter.write_data", side_effect=OSError("torn")
    )
    if fleet.worker_index() == 0:
        torn.start()
    save_checkpoint(folder, run.model, run.optimizer, step=5, wait=False)
    hear(lambda: load_checkpoint(folder, run.model, run.optimizer))
    patch.stopall()
    run.train(1)
    assert [path.name for path in folder.iterdir()] == ["checkpoint-1"], "nothing half done stays"
    load_checkpoint(folder, run.model, run.optimizer)
    return said


def test_what_fails_in_the_background_is_raised_by_the_next_call_everywhere(tmp_path: Path) -> None:
    first, second = world(2).run(fails, tmp_path)
    assert first[0] == "worker 1 failed, so all stop: OSError: no space left"
    assert second[0] == "no space left"
    assert first[1].startswith("worker 1 failed, so all stop: TypeError: ")
    assert "lock is a lock, which cannot be saved" in second[1]
    assert first[2] == "torn"
    assert second[2] == "worker 0 failed, so all stop: OSError: torn"


SCRIPT = """
import sys
from unittest.mock import patch
import torch
import fleetx as fleet
from fleetx.io import save_checkpoint

fleet.init(is_collective=True)
model = fleet.distributed_model(torch.nn.Linear(2, 1))
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), 0.1))
if "full" in sys.argv:
    patch("fleetx.io.saving.save_tensors", side_effect=OSError("no space left")).start()
save_checkpoint("out", model, optimizer, step=1, wait=False)
"""


@pytest.mark.parametrize("full", [False, True])
def test_a_script_that_ends_waits_for_its_last_checkpoint(full: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [python(), "train.py", *(["full"] if full else [])]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == int(full), ended.stderr
    assert (tmp_path / "out" / "checkpoint-1").exists() is not full
    assert ("the checkpoint that was being written" in ended.stderr) is full
    assert ("no space left" in ended.stderr) is full

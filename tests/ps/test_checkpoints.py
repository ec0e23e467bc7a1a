"""Checkpoints of jobs with servers: tables, dense parameters and what workers keep, in one folder.

The comparisons are in the script, on every worker.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.launch.conftest import Launcher, Outcome
from tests.programs import python

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT, MANAGED = str(SCRIPTS / "checkpointed.py"), str(SCRIPTS / "managed.py")


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path, python())
    yield launcher
    launcher.close()


def ran(launcher: Launcher, turn: str, mode: str, servers: int, workers: int = 2) -> None:
    numbers = [f"--server_num={servers}", f"--worker_num={workers}"]
    outcome = launcher.run(*numbers, SCRIPT, turn, mode, "saved")
    assert outcome.code == 0, outcome.err


def test_a_synchronous_job_goes_back_and_on_exactly(launcher: Launcher, tmp_path: Path) -> None:
    ran(launcher, "first", "sync", servers=1)
    assert {path.name for path in (tmp_path / "saved" / "checkpoint-3").iterdir()} == {
        "manifest.json",
        "tables",
        "tensors",
        "workers",
    }


@pytest.mark.rare
@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_another_job_goes_on_with_other_servers(launcher: Launcher, mode: str) -> None:
    ran(launcher, "first", mode, servers=1)
    ran(launcher, "again", mode, servers=2)


@pytest.mark.rare
def test_a_job_without_servers_refuses_it(launcher: Launcher, tmp_path: Path) -> None:
    ran(launcher, "first", "sync", servers=1)
    script = launcher.script(
        "import torch, fleetx as fleet\n"
        "from fleetx.io import load_checkpoint\n"
        "fleet.init(is_collective=True)\n"
        "model = fleet.distributed_model(torch.nn.Linear(8, 1))\n"
        "optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1))\n"
        "load_checkpoint('saved', model, optimizer)\n"
    )
    outcome = launcher.run("--nproc_per_node", "1", script)
    assert "written by a job with parameter servers, and this one is without" in outcome.err


def managed(launcher: Launcher, kind: str, folder: str, event: str) -> Outcome:
    flags = ["--server_num=1", "--worker_num=2", "--max_restart=1", f"--log_dir=log-{folder}"]
    job = launcher.start(*flags, MANAGED, kind, folder, event)
    if event == "leave":
        for worker in range(2):
            launcher.await_file(f"middle-{worker}")
        job.send_signal(signal.SIGTERM)
    return launcher.finish(job)


@pytest.mark.rare
@pytest.mark.parametrize("kind", ["model", "program"])
def test_a_managed_job_goes_on_after_a_kill_and_after_it_left(
    launcher: Launcher, tmp_path: Path, kind: str
) -> None:
    assert managed(launcher, kind, "plain", "none").code == 0
    killed = managed(launcher, kind, "killed", "kill")
    assert killed.code == 0, killed.err
    assert "went on from 25" in killed.out
    left = managed(launcher, kind, "left", "leave")
    assert left.code == 75, left.err
    again = managed(launcher, kind, "left", "none")
    assert again.code == 0, again.err
    assert "went on from None" not in again.out
    for worker in range(2):
        ends = [
            load_file(tmp_path / folder / f"ended-{worker}.safetensors")
            for folder in ("plain", "killed", "left")
        ]
        assert all(end["outputs"].equal(ends[0]["outputs"]) for end in ends)


@pytest.mark.rare
def test_workers_at_their_own_pace_have_no_update_in_common(launcher: Launcher) -> None:
    outcome = managed(launcher, "asynchronous model", "own", "none")
    assert "with strategy.a_sync each of them updates the servers at its own pace" in outcome.err

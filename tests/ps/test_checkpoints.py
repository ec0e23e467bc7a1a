"""Checkpoints of jobs with servers: tables, dense parameters and what workers keep, in one folder.

The comparisons are in the script, on every worker.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.conftest import Launcher
from tests.programs import python

SCRIPT = str(Path(__file__).parent / "scripts" / "checkpointed.py")


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

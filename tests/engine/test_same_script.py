"""One script, unchanged, under python and under fleetrun with 1, 2 and 4 workers."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.programs import fleetrun

SCRIPT = Path(__file__).parent / "scripts" / "three_optimizers.py"


def run(command: list[str], folder: Path) -> Any:
    folder.mkdir()
    saved = folder / "weights.pt"
    line = [*command, str(SCRIPT), str(saved)]
    result = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return torch.load(saved, weights_only=True)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run([sys.executable], tmp_path_factory.mktemp("plain") / "python")


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_under_fleetrun_equal_plain_python(
    workers: int, plain: Any, tmp_path: Path
) -> None:
    found = run(fleetrun("--nproc_per_node", str(workers)), tmp_path / "fleetrun")
    assert (plain["workers"], found["workers"]) == (1, workers)
    for name, expected in plain["weights"].items():
        torch.testing.assert_close(found["weights"][name], expected, rtol=1e-6, atol=1e-6)


def test_a_process_may_begin_another_job(tmp_path: Path) -> None:
    script = str(SCRIPT.with_name("starts_again.py"))
    line = fleetrun("--gpus", "none", "--nproc_per_node", "2", script)
    result = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "job 2 done by worker 0" in result.stdout

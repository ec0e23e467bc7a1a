"""The state of strategies survives into processes that are really new, bit for bit."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = str(Path(__file__).parent / "scripts" / "in_parts.py")


def run(folder: Path, first: int, last: int, flags: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    line = [sys.executable, "-m", "fleetx.launch", "--gpus", "none", "--nproc_per_node", "2"]
    line += [SCRIPT, str(folder), str(first), str(last), *flags]
    done = subprocess.run(
        line, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ["amp", "gradient_merge", "dgc"],
        ["amp", "adaptive_localsgd", "lars"],
        ["localsgd", "gradient_merge", "lamb"],
    ],
    ids="+".join,
)
def test_a_run_in_two_processes_is_the_run_in_one(flags: list[str], tmp_path: Path) -> None:
    run(tmp_path / "whole", 0, 11, flags)
    run(tmp_path / "parts", 0, 5, flags)
    run(tmp_path / "parts", 5, 11, flags)
    for rank in range(2):
        whole, parts = (
            torch.load(tmp_path / kind / f"rank{rank}.pt", weights_only=True)
            for kind in ("whole", "parts")
        )
        torch.testing.assert_close(parts, whole, rtol=0, atol=0)
        assert parts["optimizer"]["strategies"], "there is state to lose"

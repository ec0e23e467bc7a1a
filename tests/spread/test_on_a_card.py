"""Spread tensors of two workers on a card are read and written as whole ones."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fleetx.testing.limits import stretched
from tests.ports import free_ports


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_answers_are_those_of_whole_tensors() -> None:
    """NCCL joins the workers, because it is told that they are on different hosts."""
    (port,) = free_ports(1)
    started = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    module = ["--master_port", str(port), "--module", "tests.spread.answers_on_a_card"]
    ended = subprocess.run(
        [*started, *module],
        capture_output=True,
        text=True,
        timeout=stretched(240),
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-3000:]

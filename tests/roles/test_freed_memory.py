"""Workers on a CPU keep the memory of one step for the next; counted in faults of pages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleetx.roles.freed_memory import keep_freed_memory
from tests.rotation import by_turns

ROOT = Path(__file__).parents[2]

SCRIPT = """
import resource, torch, fleetx as fleet
fleet.init(is_collective=True)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(3)])
model = fleet.distributed_model(model)
optimizer = fleet.distributed_optimizer(torch.optim.AdamW(model.parameters()))
def updates(number):
    for _ in range(number):
        optimizer.minimize(model(torch.ones(4, 1024)).sum())
        optimizer.zero_grad()
updates(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
updates(5)
print("faults", (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 5)
"""


def faults(folder: Path, **chosen: str) -> int:
    """Of an update."""
    (folder / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "train.py"],  # whose C library reads its variables as it begins
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | chosen,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@by_turns(2, of=4)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's mallopt")
def test_an_update_asks_the_system_for_no_memory(tmp_path: Path) -> None:
    given_back = {f"MALLOC_{name}_THRESHOLD_": "131072" for name in ("TRIM", "MMAP")}
    before = faults(tmp_path, **given_back)
    assert before > 1000, "else there is nothing to mend"
    # Not none: systems that are short of memory take pages that nobody has touched for a while.
    assert faults(tmp_path) < before / 4


def test_what_a_user_has_chosen_stays() -> None:
    assert not keep_freed_memory({"MALLOC_MMAP_THRESHOLD_": "65536"})
    assert not keep_freed_memory({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=0"})

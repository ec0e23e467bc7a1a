"""Jobs that are killed go on by themselves: ten kills of benchmarks/kills.py, two in every run."""

import random
import signal
from pathlib import Path

import pytest

from benchmarks.kills import Job, Kills, Outcome, compared, undisturbed

SMALL = ["--epochs=1", "--batch=8", "--sentences=512"]
UPDATES = 32


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    found = undisturbed(tmp_path_factory.mktemp("kills") / "plain", SMALL)
    assert sorted(found) == list(range(1, UPDATES + 1))
    return found


def disturbed(job: Job, code: int, expected: dict[int, float], tolerance: float) -> Outcome:
    found = compared(job, code, expected)
    said = "".join(path.read_text(errors="replace") for path in job.folder.glob("machine*.txt"))
    assert found.code == 0, said
    assert found.missing == 0, said
    assert found.farthest <= tolerance, said
    assert "loss on new sentences" in said
    return found


def test_a_job_goes_on_after_kills_of_workers(tmp_path: Path, expected: dict[int, float]) -> None:
    """Twice, at moments that the job's own progress chooses."""
    job = Job(tmp_path, SMALL, steps=1)
    job.start()
    draw = random.Random(1)
    for update in (4, 10):
        assert job.await_update(update)
        assert job.kill("worker", draw)
    found = disturbed(job, job.end(), expected, tolerance=0.0)
    # One checkpoint may not be whole yet, and the next not begun.
    assert found.repeated <= 6, "from a checkpoint, not from the beginning"


@pytest.mark.rare
def test_a_job_goes_on_after_kills_at_any_moment(
    tmp_path: Path, expected: dict[int, float]
) -> None:
    job = Job(tmp_path, SMALL, seconds=0.05)
    job.start()
    job.disturb(Kills(kinds=("worker",), pause=3.0, number=4), random.Random(2))
    assert job.killed
    disturbed(job, job.end(), expected, tolerance=0.0)


@pytest.mark.rare
def test_a_job_goes_on_without_machines_and_with_them_again(tmp_path: Path) -> None:
    """Each of two is lost, also the one whose store the workers use, and so is a worker."""
    longer = ["--epochs=4", *SMALL[1:]]
    expected = undisturbed(tmp_path / "plain", longer)
    job = Job(tmp_path, longer, machines=2, seconds=0.05)
    job.start()
    draw = random.Random(3)
    struck = [("machine", 0), ("leave", 1), ("worker", 0), ("machine", 1)]
    for kind, number in struck:
        victim = job.started[number]
        while not victim.workers():
            assert job.await_update(job.reached() + 1)
        assert job.await_update(job.reached() + 3)
        job.strike(kind, victim, draw)
        if kind == "worker":
            continue
        assert victim.process is not None
        assert victim.process.wait(100) == (75 if kind == "leave" else -signal.SIGKILL)
        assert job.await_update(job.reached() + 3), "with the worker that is left"
        job.hold()
        victim.start()
    disturbed(job, job.end(), expected, tolerance=2e-4)
    texts = [path.read_text() for path in tmp_path.glob("log*/**/workerlog.0*")]
    shares = [text for text in texts if "meant for 2 shares of the data, and there are 1" in text]
    assert len(shares) == 3, "once for each loss of a machine"
    last = max(tmp_path.glob("log*/workerlog.0"), key=lambda path: path.stat().st_mtime)
    assert "meant for 2 shares" not in last.read_text(), "in the end there are two again"

"""Jobs that are killed at random moments go on by themselves: ten kills of benchmarks/kills.py."""

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
@pytest.mark.parametrize("kind", ["machine", "leave"])
def test_a_job_goes_on_without_a_machine_and_with_it_again(
    tmp_path: Path, expected: dict[int, float], kind: str
) -> None:
    job = Job(tmp_path, SMALL, machines=2, seconds=0.05)
    job.start()
    draw = random.Random(3)
    assert job.await_update(3)
    assert job.kill(kind, draw)
    gone = job.started[-1].process
    assert gone is not None
    assert gone.wait(100) == (75 if kind == "leave" else -signal.SIGKILL)
    assert job.await_update(job.reached() + 3), "with the worker that is left"
    job.started[-1].start()
    disturbed(job, job.end(), expected, tolerance=2e-4)
    said = (tmp_path / "log0" / "workerlog.0").read_text()
    assert "meant for 2 shares of the data" not in said, "in the end there are two again"
    kept = "".join(path.read_text() for path in tmp_path.glob("log0/workerlog.0.attempt*"))
    assert "meant for 2 shares of the data, and there are 1: an update takes 2 batches" in kept

"""SIGTERM before a machine is taken away: the workers save, and ask to be started again."""

import os
import signal
import time
from pathlib import Path

import pytest

from fleetx.testing.limits import stretched
from tests.launch.conftest import Launcher
from tests.programs import behind

# What a loop of a user does, as far as the launcher sees it: a worker heeds SIGTERM, its reporter
# tells so, and it goes on until it leaves.
HEEDS = """
import os, sys, time
from fleetx.roles import activity
from fleetx.roles.leaving import Left, is_restart, notice
notice.heed()
activity.begin_batch()
name = "rank" + os.environ["RANK"]
open(name + ".part", "w").write(str(os.getpid()))
os.rename(name + ".part", name + "." + os.environ["PADDLE_RESTART"])
"""
LEAVES = """
while not notice.told: time.sleep(0.01)
open("saved" + os.environ["RANK"], "w").write("1")
raise Left("told by " + notice.told)
"""


def await_leavers(launcher: Launcher, attempt: int = 0) -> None:
    """Until both workers have told the launcher that they would leave by themselves."""
    for rank in range(2):
        launcher.await_file(f"rank{rank}.{attempt}")
    deadline = time.monotonic() + stretched(60)
    files = f"fleetrun-*/workerlog.*.{attempt}.activity"
    while time.monotonic() < deadline:
        told = [path.read_text() for path in launcher.folder.glob(files)]
        if sum('"leaves": true' in text for text in told) == 2:
            return
        time.sleep(0.05)
    raise AssertionError("nobody told")


def test_workers_that_save_themselves_leave_with_a_code_that_asks_for_a_restart(
    launcher: Launcher,
) -> None:
    script = launcher.script(HEEDS + LEAVES)
    job = launcher.start("--nproc_per_node=2", "--max_restart=3", script)
    await_leavers(launcher)
    job.send_signal(signal.SIGTERM)
    outcome = launcher.finish(job)
    assert outcome.code == 75
    assert {path.name for path in launcher.folder.glob("saved*")} == {"saved0", "saved1"}
    assert "the workers save, for which they have 25 s, and leave" in outcome.err
    assert "left (exit code 75)" in outcome.err
    assert "told by SIGTERM" in outcome.err
    assert "restart 1 of" not in outcome.err, "the machine goes, and the job with it"


@pytest.mark.rare
def test_workers_that_take_too_long_are_ended(launcher: Launcher) -> None:
    script = launcher.script(HEEDS + "while True: time.sleep(0.05)")
    job = launcher.start("--nproc_per_node=2", "--grace=0.5", script)
    await_leavers(launcher)
    job.send_signal(signal.SIGTERM)
    outcome = launcher.finish(job)
    assert outcome.code == 128 + signal.SIGTERM
    assert "did not leave within 0.5 s" in outcome.err


@pytest.mark.rare
def test_a_worker_that_is_told_alone_starts_the_job_again(launcher: Launcher) -> None:
    """The others leave as well; a survivor of a failure is ended at once, with its `finally`."""
    script = launcher.script(
        HEEDS
        + """
if is_restart():
    print("went on")
    sys.exit(0)
if os.environ["RANK"] == "0":
    while not notice.told: time.sleep(0.01)
    raise Left("told by " + notice.told)
try:
    while True: time.sleep(0.05)
finally:
    open("tidied", "w").write("1")
"""
    )
    job = launcher.start("--nproc_per_node=2", "--max_restart=1", script)
    await_leavers(launcher)
    pid = int(Path(launcher.folder / "rank0.0").read_text())
    os.kill(behind(pid), signal.SIGTERM)
    outcome = launcher.finish(job)
    assert outcome.code == 0, outcome
    assert "rank 0 left (exit code 75)" in outcome.err
    assert "restart 1 of 1" in outcome.err
    assert "went on" in launcher.log("workerlog.1")
    assert (launcher.folder / "tidied").exists(), "SIGTERM ends what a failure has left"

"""Whole jobs under ``fleetrun``, with processes that are killed at random points."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from fleetx.nn import SparseEmbedding, load_inference_model
from fleetx.ps.server.membership import GRACE, SILENCE
from fleetx.ps.server.server import WATCH
from fleetx.testing.limits import stretched
from tests.launch.conftest import Launcher, Outcome
from tests.programs import behind, python
from tests.rotation import rotating

HERE = Path(__file__).parent
SCRIPT = str(HERE / "scripts" / "survivor.py")
BOTH_WAYS = HERE / "scripts" / "both_ways.py"
SECRETS = (("cert", "certificate"), ("key", "key"))


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path, python())
    yield launcher
    launcher.close()


def start(
    launcher: Launcher, mode: str, steps: int, pause: float, **flags: int
) -> subprocess.Popen[str]:
    numbers = {"server_num": 1, "worker_num": 1} | flags
    listed = [f"--{name}={value}" for name, value in numbers.items()]
    return launcher.start(*listed, SCRIPT, mode, str(steps), str(pause))


def pid_of(job: subprocess.Popen[str], role: str, rank: int) -> int:
    """The process of a job, found by the variables it was started with."""
    launcher = behind(job.pid)
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for child in children:
        variables = Path(f"/proc/{child}/environ").read_bytes().decode().split("\0")
        known = dict(line.split("=", 1) for line in variables if "=" in line)
        own = known.get("PADDLE_PSERVERS_IP_PORT_LIST", "").split(",")
        endpoint = f"{known.get('POD_IP')}:{known.get('PADDLE_PORT')}"
        index = own.index(endpoint) if role == "PSERVER" and endpoint in own else -1
        if role == "TRAINER":
            index = int(known.get("PADDLE_TRAINER_ID", -1))
        if known.get("TRAINING_ROLE") == role and index == rank:
            return behind(int(child))
    raise AssertionError(f"there is no {role} {rank}")


def await_step(launcher: Launcher, step: int, worker: int = 0) -> None:
    deadline = time.monotonic() + stretched(150)
    path = launcher.folder / "log" / f"workerlog.{worker}"
    while time.monotonic() < deadline:
        if path.exists() and f"step {step}\n" in path.read_text():
            return
        time.sleep(0.01)
    raise AssertionError(path.read_text() if path.exists() else "no log")


def await_notice(launcher: Launcher) -> None:
    """Wait until the server has written that worker 1 is dead.

    After how many seconds of silence is what it says itself: the machine may be slow.
    """
    assert GRACE + WATCH < SILENCE + WATCH < 10
    deadline = time.monotonic() + stretched(100)
    notice = f"worker 1 is dead: all connections closed for {GRACE:.0f} s"
    while notice not in (log := launcher.log("serverlog.0")):
        assert time.monotonic() < deadline, log
        time.sleep(0.05)


def go(launcher: Launcher) -> None:
    """Let a job come to its end."""
    (launcher.folder / "go").touch()


def table(launcher: Launcher) -> np.ndarray:
    found: np.ndarray = np.load(launcher.folder / "table.npy")
    return found


@pytest.mark.parametrize("mode", rotating(["half", "geo"], 2))
def test_a_server_killed_at_random_points_loses_nothing_and_repeats_nothing(
    mode: str, tmp_path: Path
) -> None:
    undisturbed, disturbed = (Launcher(tmp_path / name, python()) for name in ("calm", "storm"))
    for each in (undisturbed, disturbed):
        each.folder.mkdir()
    steps = 60
    go(undisturbed)
    calm = start(undisturbed, mode, steps, 0.0, server_num=2)
    job = start(disturbed, mode, steps, 0.03, server_num=2)
    chance = random.Random(7)
    try:
        for step in (5, 25, 45):
            await_step(disturbed, step + chance.randrange(10))
            time.sleep(chance.random() * 0.03)
            os.kill(pid_of(job, "PSERVER", chance.randrange(2)), signal.SIGKILL)
        go(disturbed)
        outcome = disturbed.finish(job, 200)
        assert undisturbed.finish(calm, 200).code == 0
    finally:
        disturbed.close()
        undisturbed.close()
    assert outcome.code == 0, outcome.err + disturbed.log("workerlog.0")
    assert outcome.err.count("was killed by SIGKILL and is started again") == 3
    assert (table(disturbed) == table(undisturbed)).all()
    assert not list((disturbed.folder / "log").glob("servers-*")), "nothing is left behind"


def test_synchronous_workers_go_on_with_a_server_that_came_back(launcher: Launcher) -> None:
    job = start(launcher, "sync", 40, 0.03, server_num=2, worker_num=2)
    await_step(launcher, 8)
    os.kill(pid_of(job, "PSERVER", 0), signal.SIGKILL)
    go(launcher)
    outcome = launcher.finish(job, 200)
    assert outcome.code == 0, outcome.err + launcher.log("workerlog.0")
    disturbed = table(launcher)
    again = launcher.finish(start(launcher, "sync", 40, 0.0, server_num=2, worker_num=2))
    assert again.code == 0, again.err
    assert (table(launcher) == disturbed).all()


def test_a_killed_worker_is_noticed_and_the_others_go_on(launcher: Launcher) -> None:
    job = start(launcher, "async", 20, 0.0, worker_num=2)
    await_step(launcher, 5, worker=1)
    os.kill(pid_of(job, "TRAINER", 1), signal.SIGKILL)
    await_notice(launcher)
    go(launcher)
    outcome = launcher.finish(job, 200)
    assert outcome.code == 0, outcome.err + launcher.log("workerlog.0")
    assert "rank 1 was killed by SIGKILL" in outcome.err
    assert "done" in launcher.log("workerlog.0")


def test_a_killed_worker_stops_those_that_wait_for_it_by_its_name(launcher: Launcher) -> None:
    job = start(launcher, "sync", 20, 0.0, worker_num=2)
    await_step(launcher, 5, worker=1)
    os.kill(pid_of(job, "TRAINER", 1), signal.SIGKILL)
    go(launcher)
    await_notice(launcher)
    outcome: Outcome = launcher.finish(job, 200)
    assert outcome.code == 1
    assert "worker 1 is dead, and synchronous training cannot go on" in outcome.err


class Net(nn.Module):
    """The plain model of ``both_ways``, without its job."""

    def __init__(self) -> None:
        super().__init__()
        self.words = SparseEmbedding(4, name="plain")
        self.head = nn.Linear(12, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(words).flatten(1))


def test_a_program_learns_what_a_plain_model_learns_and_all_of_it_is_encrypted(
    launcher: Launcher,
) -> None:
    """And what was learned is computed with afterwards, without servers."""
    secret = {f"FLEETX_PS_{name.upper()}": str(HERE / f"{file}.pem") for name, file in SECRETS}
    numbers = ["--server_num=1", "--worker_num=2"]
    outcome = launcher.finish(launcher.start(*numbers, str(BOTH_WAYS), **secret), 200)
    assert outcome.code == 0, outcome.err + launcher.log("workerlog.0")
    assert [launcher.log(f"workerlog.{i}").count("equal") for i in (0, 1)] == [1, 1]
    saved = launcher.folder / "model" / "recorded" / "server-0"
    (path,) = saved.glob("rows-*.safetensors")
    net = load_inference_model(launcher.folder / "serve", Net())
    for worker in (0, 1):
        outputs = np.load(launcher.folder / f"outputs-{worker}.npz")
        torch.testing.assert_close(
            net(torch.from_numpy(outputs["ids"])).detach().numpy(), outputs["found"]
        )
    clicks = load_file(next((launcher.folder / "model" / "plain").rglob("rows-*.safetensors")))
    assert load_file(path)["rows"].shape[1] == 4
    # Every lookup is a show and a click: six batches of eight times three ids from two workers.
    assert clicks["stats"].sum(0).tolist() == [2 * 6 * 24, 2 * 6 * 24]

"""A launcher under test: real processes in a folder of their own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleetx.testing.limits import stretched
from tests.programs import python

CLEAN = ("PADDLE_", "TRAINER_", "POD_IP", "OMPI_", "PMI_", "SLURM_", "FLEETX_", "CUDA_VISIBLE")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str
    seconds: float


@dataclass
class Launcher:
    """Starts `fleetrun` and ends whatever a test has left running."""

    folder: Path
    executable: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def script(self, text: str, name: str = "train.py") -> str:
        (self.folder / name).write_text(text, encoding="utf-8")
        return name

    def start(self, *args: str, **variables: str) -> subprocess.Popen[str]:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(CLEAN)}
        environ["CUDA_VISIBLE_DEVICES"] = ""  # the same tests on a machine with cards
        environ["TMPDIR"] = str(self.folder)  # a killed launcher cannot tidy up
        process = subprocess.Popen(
            [self.executable, "-m", "fleetx.launch", *args],
            cwd=self.folder,
            env=environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_signals,  # noqa: PLW1509 - it takes no lock that a thread could hold
        )
        self.started.append(process)
        return process

    def finish(self, process: subprocess.Popen[str], timeout: float = 90) -> Outcome:
        began = time.monotonic()
        out, err = process.communicate(timeout=stretched(timeout))
        return Outcome(process.returncode, out, err, time.monotonic() - began)

    def run(self, *args: str, **variables: str) -> Outcome:
        return self.finish(self.start(*args, **variables))

    def log(self, name: str, folder: str = "log") -> str:
        return (self.folder / folder / name).read_text(encoding="utf-8")

    def await_file(self, name: str, timeout: float = 60) -> str:
        """Waits until a script has written a file, and returns what is in it."""
        deadline = time.monotonic() + stretched(timeout)
        path = self.folder / name
        while time.monotonic() < deadline:
            if path.exists() and (text := path.read_text(encoding="utf-8")):
                return text
            time.sleep(0.05)
        raise AssertionError(f"{name} was not written")

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()


@pytest.fixture
def launcher(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Launcher]:
    """In processes that have loaded torch already, unless the test is about processes."""
    is_real = request.node.get_closest_marker("real_processes") is not None
    launcher = Launcher(tmp_path, sys.executable if is_real else python())
    yield launcher
    launcher.close()


def heed_signals() -> None:
    """Undo what ``nohup`` and background jobs of shells leave ignored, which is inherited."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def is_running(pid: int) -> bool:
    """True for a process that exists and is not merely waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def gone() -> "type[Gone]":
    return Gone


class Gone:
    @staticmethod
    def wait(pids: list[int], timeout: float = 5) -> list[int]:
        """Those of the processes that still run after a while."""
        deadline = time.monotonic() + stretched(timeout)
        while time.monotonic() < deadline and any(map(is_running, pids)):
            time.sleep(0.05)
        return [pid for pid in pids if is_running(pid)]

"""Whole programs for tests, in processes that need not load torch again.

``python()`` is an executable to be used like ``sys.executable``: ``python() -m fleetx.launch
train.py`` is a process of its own, and so is each worker that it starts, with arguments, folder,
environment, files, signals and exit code as always. But they are forks of one process that has
loaded torch and fleetx, which else take each of them three to six seconds.

Tests about processes themselves (tests/launch) start real ones.
"""

import atexit
import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

_HERE = Path(__file__).parent


@functools.cache
def python() -> str:
    """The path of the executable; the first call starts the process that is forked."""
    folder = Path(tempfile.mkdtemp(prefix="programs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address, client = folder / "socket", folder / "python"
    text = (_HERE / "client.py").read_text(encoding="utf-8")
    client.write_text(f"#!{sys.executable} -IS\n{text}", encoding="utf-8")
    client.chmod(0o755)
    _start(address, client)
    return str(client)


def fleetrun(*arguments: str) -> list[str]:
    """The command that starts a job."""
    return [python(), "-m", "fleetx.launch", *arguments]


def behind(pid: int) -> int:
    """The process that does the work of ``pid``: the fork of a program that ``python()`` began."""
    title = Path(f"/proc/{pid}/comm").read_text().strip()
    return int(title) if title.isdigit() else pid


def _start(address: Path, client: Path) -> None:
    mine, theirs = socket.socketpair()
    with theirs:
        server = subprocess.Popen(
            [sys.executable, str(_HERE / "server.py"), str(theirs.fileno()), address, client],
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for those who use it
        )

    def end() -> None:
        mine.close()
        server.wait()

    atexit.register(end)
    if mine.recv(1) != b"!":
        raise RuntimeError("the process from which programs are forked could not start")

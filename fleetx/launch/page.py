"""`fleetrun --watch`: the page that shows a job, in a process of its own.

A browser that is slow, or many of them, take nothing from the job: the page reads the files that
the launcher writes anyway.
"""

import contextlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from fleetx.launch.arguments import Arguments
from fleetx.launch.errors import LaunchError

NEEDED = ("starlette", "uvicorn")
PATIENCE = 5.0
"""Seconds in which the page may show how the job ended, and go."""


@contextlib.contextmanager
def page(arguments: Arguments, log_dir: Path) -> Iterator[None]:
    """Inside, the page is served, if that was asked for."""
    if not arguments.watch and arguments.watch_at is None:
        yield
        return
    process = _start(arguments.watch_at, log_dir)
    try:
        yield
    finally:
        # The end of its input tells it, also when this process is killed.
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(address: str | None, log_dir: Path) -> "subprocess.Popen[bytes]":
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise LaunchError(
            f"--watch serves a page and needs {' and '.join(missing)}, not installed here; "
            "pip install 'fleetx[watch]', or leave the flag out: what the page shows is kept in "
            "the log folder, for fleetx watch at any time"
        )
    at = [] if address is None else ["--at", address]
    # By name: the room of the page stands to the right of this one.
    command = [sys.executable, "-m", "fleetx.watch", str(log_dir), *at, "--until_input_ends"]
    # A session of its own, so that Ctrl-C ends the job first and the page shows it.
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

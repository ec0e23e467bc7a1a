"""The parent's side of the fork server: start it once, ask it for ranks, end them."""

import atexit
import contextlib
import fcntl
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from io import BufferedRandom
from multiprocessing.connection import Connection
from typing import Any

from fleetx.testing.sources import shared_modules

_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; from fleetx.testing.fork_server import main; main({fd})"
)


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One rank as the parent sees it."""

    pid: int
    connection: Connection
    output: BufferedRandom
    traceback: BufferedRandom

    def forget_output(self) -> None:
        """Empty what the rank has written so far."""
        for file in (self.output, self.traceback):
            os.ftruncate(file.fileno(), 0)

    def read_output(self) -> str:
        """What the rank wrote to stdout and stderr in the current call."""
        return _read(self.output)

    def read_traceback(self) -> str:
        """What faulthandler wrote when the rank was aborted."""
        return _read(self.traceback)

    def close(self) -> None:
        """Let go of the rank's files."""
        for file in (self.connection, self.output, self.traceback):
            file.close()


class ForkClient:
    """A running fork server. One serves all pools of an interpreter."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair()
        program = _PROGRAM.format(path=sys.path, fd=theirs.fileno())
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the parent's business
        )
        theirs.close()
        self._control = Connection(mine.detach())
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._modules: set[str] = set()
        atexit.register(self.close)

    @property
    def pid(self) -> int:
        """The process of the fork server."""
        return self._process.pid

    @property
    def is_usable(self) -> bool:
        """Whether the fork server lives and belongs to this process, not to one that forked it."""
        is_open = self._owner == os.getpid() and not self._control.closed
        return is_open and self._process.poll() is None

    def learn(self, modules: Iterable[str]) -> None:
        """Note modules that ranks use, for the next ranks to be born with them."""
        self._modules.update(modules)

    def start(self, size: int) -> list[RankProcess]:
        """Fork `size` new ranks."""
        links = [socket.socketpair() for _ in range(size)]
        opened = [[_append_only_file() for _ in range(2)] for _ in range(size)]
        self.learn(shared_modules())
        sent = [
            [theirs.fileno(), *(file.fileno() for file in files)]
            for (_, theirs), files in zip(links, opened, strict=True)
        ]
        pids = self._ask("start", size, sys.argv, sys.path, sorted(self._modules), files=sent)
        for _, theirs in links:
            theirs.close()
        return [
            RankProcess(pid, Connection(mine.detach()), *files)
            for pid, (mine, _), files in zip(pids, links, opened, strict=True)
        ]

    def stop(self, ranks: list[RankProcess], *, dump: bool) -> list[int]:
        """End `ranks`, first asking each for its traceback if `dump`; returns their exit codes."""
        codes: dict[int, int] = self._ask("stop", [rank.pid for rank in ranks], dump)
        return [codes.get(rank.pid, 0) for rank in ranks]

    def close(self) -> None:
        """End the fork server and every rank it has."""
        if self._owner != os.getpid():
            return
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        atexit.unregister(self.close)

    def _ask(self, *request: object, files: Iterable[list[int]] = ()) -> Any:
        with self._lock:
            try:
                self._control.send_bytes(pickle.dumps(request))
                with socket.socket(fileno=os.dup(self._control.fileno())) as control:
                    for numbers in files:
                        socket.send_fds(control, [b"."], numbers)
                return pickle.loads(self._control.recv_bytes())
            except BaseException:
                # Interrupted half-way, the next answer would be that to this question.
                self.close()
                raise


def _append_only_file() -> BufferedRandom:
    # Between calls we truncate the file under the rank, which would go on writing at its old
    # offset and leave a hole of NUL bytes. tempfile's mode "a" does not reach the system.
    file = tempfile.TemporaryFile("a+b")  # noqa: SIM115
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_APPEND)  # holds for the rank's copy too
    return file


def _read(file: BufferedRandom) -> str:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode(errors="replace")

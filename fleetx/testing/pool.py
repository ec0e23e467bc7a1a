"""The kept processes of one world size: call them, wait for them, replace them."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from fleetx.testing import reports, shipping
from fleetx.testing.fork_client import ForkClient, RankProcess
from fleetx.testing.limits import stretched
from fleetx.testing.rank import Reply

_START_LIMIT = 120.0  # seconds for forking and meeting; a busy machine is slow at both
_GRACE = 0.25  # seconds in which other ranks may report a failure that came first


class Pool:
    """`size` ranks that stay up between calls."""

    def __init__(self, size: int, forks: ForkClient) -> None:
        self._forks = forks
        self._size = size
        self._ranks: list[RankProcess] = []
        self._lock = threading.Lock()

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks that are up; empty before the first call."""
        return [rank.pid for rank in self._ranks]

    @property
    def is_usable(self) -> bool:
        """Whether calls can be made from this process."""
        return self._forks.is_usable

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        timeout: float,
    ) -> list[Any]:
        """Run `function` on every rank; the results by rank, or the first failure raised."""
        request = _pack(function, args, kwargs)
        with self._lock:
            try:
                self._start()
                self._signal(signal.SIGCONT)
                results = self._finish(self._collect(request, function, timeout))
                # The threads of gloo look around a hundred times a second, also when nobody asks
                # for anything: kept ranks would take a core from the tests of other sizes.
                self._signal(signal.SIGSTOP)
                return results
            except BaseException as error:
                # Ranks may be anywhere, so nothing of them can be used again.
                if not reports.is_agreed_skip(error):
                    self._stop()
                raise

    def _signal(self, number: signal.Signals) -> None:
        for rank in self._ranks:
            with contextlib.suppress(ProcessLookupError):  # its death is told where it is asked
                os.kill(rank.pid, number)

    def _start(self) -> None:
        if self._ranks:
            return
        self._ranks = self._forks.start(self._size)
        waiting = [rank.connection for rank in self._ranks]
        deadline = time.monotonic() + stretched(_START_LIMIT)
        while waiting:
            ready = wait(waiting, deadline - time.monotonic())
            if not ready:
                raise TimeoutError(f"{self._size} ranks did not meet within {_START_LIMIT:.0f} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                self._greet(connection)
                waiting.remove(connection)

    def _greet(self, connection: Connection) -> None:
        try:
            connection.recv_bytes()
        except EOFError:
            rank = [rank.connection for rank in self._ranks].index(connection)
            output = self._ranks[rank].read_output()
            raise RuntimeError(f"rank {rank} could not start:\n{output}") from None

    def _collect(self, request: bytes, function: Callable[..., Any], timeout: float) -> list[Reply]:
        for rank in self._ranks:
            rank.forget_output()
            rank.connection.send_bytes(request)
        replies: dict[int, Reply] = {}
        numbers = {rank.connection: number for number, rank in enumerate(self._ranks)}
        began, failed_by = time.monotonic(), float("inf")
        while len(replies) < self._size:
            waiting = [c for c, number in numbers.items() if number not in replies]
            ready = _await(waiting, began, timeout, failed_by)
            if not ready:
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                number = numbers[connection]
                replies[number] = self._receive(number, function)
                if replies[number].failed_at is not None:
                    failed_by = min(failed_by, time.monotonic() + _GRACE)
        if any(reply.failed_at is not None for reply in replies.values()):
            reports.raise_first(replies, self._ranks)
        if len(replies) < self._size:
            self._give_up(replies, function, timeout)
        return [replies[number] for number in range(self._size)]

    def _receive(self, number: int, function: Callable[..., Any]) -> Reply:
        try:
            reply = shipping.loads(self._ranks[number].connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            reports.raise_death(number, self._ranks, self._end(dump=False), function)
        assert isinstance(reply, Reply)
        return reply

    def _finish(self, replies: list[Reply]) -> list[Any]:
        """The results; what the ranks printed goes on to our own stdout."""
        sys.stdout.write(reports.outputs(self._ranks))
        self._forks.learn(replies[0].loaded)
        groups = {reply.groups for reply in replies}
        if None in groups or len(groups) > 1:
            self._stop()
        return [reply.result for reply in replies]

    def _give_up(
        self, replies: Mapping[int, Reply], function: Callable[..., Any], timeout: float
    ) -> NoReturn:
        self._end(dump=True)
        reports.raise_hang(replies, self._ranks, function, timeout)

    def _end(self, *, dump: bool) -> list[int]:
        """End the processes; their output can still be read."""
        return self._forks.stop(self._ranks, dump=dump)

    def _stop(self) -> None:
        """End the processes, if they are still there; the next call starts new ones."""
        ranks, self._ranks = self._ranks, []
        with contextlib.suppress(OSError, EOFError):
            self._forks.stop(ranks, dump=False)
        for rank in ranks:
            rank.close()


def _await(waiting: list[Connection], began: float, timeout: float, latest: float) -> list[Any]:
    """Those who answer within the limit, which grows while others work on this machine."""
    while True:
        deadline = min(began + stretched(timeout), latest)
        ready = wait(waiting, max(0.0, deadline - time.monotonic()))
        if ready or time.monotonic() >= min(began + stretched(timeout), latest):
            return ready


def _pack(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    try:
        return shipping.dumps((function, tuple(args), dict(kwargs)))
    except Exception as error:
        raise TypeError(
            f"{reports.name_of(function)} or one of its arguments cannot be sent to the ranks "
            f"({error}). Pass values that pickle accepts, and make the others inside the function."
        ) from error

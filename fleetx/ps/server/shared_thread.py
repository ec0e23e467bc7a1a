"""One thread that answers what takes no time, for many connections."""

import select
import threading
from dataclasses import dataclass, field
from typing import Protocol

LOOK = 0.5
"""Seconds after which it looks whether it shall end."""


class Guest(Protocol):
    """A connection."""

    def fileno(self) -> int:
        """By which the system knows it."""

    def serve_ready(self) -> bool:
        """Answer what has come, without waiting; False if its own thread has to go on."""


@dataclass
class _Stay:
    guest: Guest
    over: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


class SharedThread:
    """Begins when the first connection comes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stays: dict[int, _Stay] = {}
        self._poll: select.epoll | None = None
        self._closed = not hasattr(select, "epoll")  # not every system has it

    def serve(self, guest: Guest) -> None:
        """Sleep while the shared thread serves a connection; what went wrong there is raised here.

        Returns when there is something for the connection's own thread to do.
        """
        stay = _Stay(guest)
        with self._lock:
            if self._closed:
                return
            self._begin()
            assert self._poll is not None
            number = guest.fileno()
            self._stays[number] = stay
            self._poll.register(number, select.EPOLLIN)
        stay.over.wait()
        if stay.error is not None:
            raise stay.error

    def _begin(self) -> None:
        if self._poll is None:
            self._poll = select.epoll()
            threading.Thread(
                target=self._run, args=(self._poll,), name="small requests", daemon=True
            ).start()

    def _run(self, poll: "select.epoll") -> None:
        while not self._closed:
            for number, _ in poll.poll(LOOK):
                self._visit(number)
        for number in [*self._stays]:
            self._give_back(number)
        poll.close()

    def _visit(self, number: int) -> None:
        stay = self._stays[number]
        try:
            if stay.guest.serve_ready():
                return
        except BaseException as error:  # of this connection alone
            stay.error = error
        self._give_back(number)

    def _give_back(self, number: int) -> None:
        assert self._poll is not None
        self._poll.unregister(number)
        self._stays.pop(number).over.set()

    def close(self) -> None:
        """Let each connection be served by its own thread again."""
        with self._lock:
            self._closed = True

"""One thread that answers what takes no time, for many connections.

Who only looks is answered first, also between two changes that came together: a worker waits for
its rows before each batch, and for its gradients to arrive hardly ever.
"""

import select
import threading
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

LOOK = 0.5
"""Seconds after which it looks whether it shall end."""


class Served(Enum):
    """What a connection still wants after a request was answered."""

    MORE = 1
    """Another request has come."""
    NOTHING = 2
    """All that has come is answered."""
    OWN_THREAD = 3
    """Its own thread has to go on."""


class Guest(Protocol):
    """A connection; none of its calls waits."""

    def fileno(self) -> int:
        """By which the system knows it."""

    def receive(self) -> bool:
        """Read what has come; whether it is somebody who only looks."""

    def serve_next(self) -> Served:
        """Answer the next request."""


@dataclass(eq=False)
class _Stay:
    guest: Guest
    number: int
    """By which the system knows its connection."""
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
        stay = _Stay(guest, guest.fileno())
        with self._lock:
            if self._closed:
                return
            self._begin()
            assert self._poll is not None
            self._stays[stay.number] = stay
            self._poll.register(stay.number, select.EPOLLIN)
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
        changes: deque[_Stay] = deque()
        """Connections that bring changes, in the order in which they came."""
        while not self._closed:
            for number, _ in poll.poll(0 if changes else LOOK):
                stay = self._stays[number]
                if self._received(stay):
                    while self._served(stay) is Served.MORE:
                        pass
                elif not stay.over.is_set() and stay not in changes:
                    changes.append(stay)
            # Who left meanwhile is not ours any more: its own thread reads the same bytes.
            if changes and (
                changes[0].over.is_set() or self._served(changes[0]) is not Served.MORE
            ):
                changes.popleft()
        for stay in [*self._stays.values()]:
            self._give_back(stay)
        poll.close()

    def _received(self, stay: _Stay) -> bool:
        try:
            return stay.guest.receive()
        except BaseException as error:  # of this connection alone
            self._give_back(stay, error)
            return False

    def _served(self, stay: _Stay) -> Served:
        try:
            served = stay.guest.serve_next()
        except BaseException as error:  # of this connection alone
            self._give_back(stay, error)
            return Served.OWN_THREAD
        if served is Served.OWN_THREAD:
            self._give_back(stay)
        return served

    def _give_back(self, stay: _Stay, error: BaseException | None = None) -> None:
        assert self._poll is not None
        self._poll.unregister(stay.number)
        del self._stays[stay.number]
        stay.error = error
        stay.over.set()

    def close(self) -> None:
        """Let each connection be served by its own thread again."""
        with self._lock:
            self._closed = True

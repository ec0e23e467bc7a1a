"""Requests that must not happen twice, although they are sent again after a lost connection."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from fleetx.ps.wire.messages import Message


@dataclass
class _Last:
    """The last numbered request of a client; its lock lets a repeated one wait for the first."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    number: int = 0
    answer: Message = field(default_factory=dict)


class RepeatedRequests:
    """Keeps the last answer of each client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[int, _Last] = {}

    def answer(self, client: int, number: int | None, work: Callable[[], Message]) -> Message:
        """Do the work, or give the answer that it had; a request without a number is always new.

        Args:
            client: who asks.
            number: of the request among those of this client, counted from 1.
            work: what was asked for; one that fails may be asked for again.
        """
        if number is None:
            return work()
        with self._lock:
            last = self._clients.setdefault(client, _Last())
        with last.lock:
            if number > last.number:
                last.answer = work()
                last.number = number
            return last.answer

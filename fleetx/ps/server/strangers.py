"""Connections whose other end has not yet proved that it knows the job's token."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator


class Strangers:
    """They have few places and little time, so that they cannot keep workers out.

    A newcomer takes the place of whoever is there the longest: an honest one proves itself within
    a few round trips, and then needs no place here.
    """

    def __init__(self, most: int, limit: float) -> None:
        """Describe the bounds.

        Args:
            most: connections at a time.
            limit: seconds that each of them may take.
        """
        self._most, self._limit = most, limit
        self._lock = threading.Lock()
        self._since: dict[socket.socket, float] = {}
        """In the order in which they came."""

    def __len__(self) -> int:
        return len(self._since)

    @contextlib.contextmanager
    def greeting(self, sock: socket.socket) -> Iterator[None]:
        """Inside, the other end proves itself; it is hung up on if that takes too long."""
        with self._lock:
            self._since[sock] = time.monotonic()
            oldest = next(iter(self._since)) if len(self._since) > self._most else None
            if oldest is not None:
                self._hang_up(oldest)
        try:
            yield
        finally:
            with self._lock:
                dropped = self._since.pop(sock, None) is None
        if dropped:
            raise ConnectionAbortedError("the greeting took too long, or too many others came")

    def drop_late(self) -> None:
        """Hang up on those whose time is over."""
        with self._lock:
            now = time.monotonic()
            late = [sock for sock, since in self._since.items() if now - since > self._limit]
            for sock in late:
                self._hang_up(sock)

    def _hang_up(self, sock: socket.socket) -> None:
        del self._since[sock]
        with contextlib.suppress(OSError):  # it is closed already
            # The plain one: that of an encrypted socket would end the encryption under a thread
            # that is just shaking hands.
            socket.socket.shutdown(sock, socket.SHUT_RDWR)

"""Whole messages over a socket, with or without TLS, and never waiting for ever in the middle."""

import contextlib
import os
import select
import socket
import ssl
import struct

import numpy as np

from fleetx.ps.wire.arrays import Array

STALL = 30
"""Seconds that may pass within a message."""
LARGE = 1 << 16
"""Bytes that more than one packet takes."""
_HUNG_UP = getattr(select, "POLLRDHUP", 0)  # not every system has it
Bytes = bytes | bytearray | memoryview


def byte_view(part: Bytes | Array) -> memoryview:
    """The bytes of something, not copied."""
    if isinstance(part, bytes):
        return memoryview(part)
    view = part.data if isinstance(part, np.ndarray) else memoryview(part)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _drop(views: list[memoryview], sent: int) -> None:
    """Take so many bytes from the beginning of a list."""
    while views and sent >= len(views[0]):
        sent -= len(views.pop(0))
    if views:
        views[0] = views[0][sent:]


class EndedError(ConnectionError):
    """The other end closed the connection between two messages."""


class Pipe:
    """A connected socket."""

    def __init__(self, sock: socket.socket, *, stall: float = STALL, corks: bool = False) -> None:
        """Take over a socket.

        Args:
            sock: connected, and encrypted if it shall be.
            stall: seconds that may pass within a message.
            corks: send encrypted records, which are short, in large packets: that costs less here
                but the other end gets them later.
        """
        self.socket = sock
        self._corks = corks and hasattr(socket, "TCP_CORK")
        self.secure = isinstance(sock, ssl.SSLSocket)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.secure:
            sock.settimeout(stall)
        else:
            # By the kernel: Python's own time-outs cost a poll before every call.
            sock.settimeout(None)
            limit = struct.pack("ll", int(stall), int(stall % 1 * 1e6))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def read(self, view: memoryview, *, idle: bool = False) -> None:
        """Fill ``view``; before its first byte there is no hurry when ``idle`` is said."""
        got, size = 0, len(view)
        flags = 0 if self.secure else socket.MSG_WAITALL
        while got < size:
            try:
                count = self.socket.recv_into(view[got:], 0, flags)
            except (BlockingIOError, TimeoutError):
                if idle and got == 0:
                    continue
                raise ConnectionError(f"{size - got} of {size} bytes did not come") from None
            if count == 0:
                raise EndedError("the connection was closed")
            got += count

    def read_some(self, view: memoryview, *, idle: bool = False, wait: bool = True) -> int:
        """Read what has come, but no more than there is room for; returns how much.

        Args:
            view: where to.
            idle: there is no hurry.
            wait: for the first byte; else there may be none.
        """
        while True:
            try:
                count = self.socket.recv_into(view, 0, 0 if wait else socket.MSG_DONTWAIT)
            except (BlockingIOError, TimeoutError):
                if not wait:
                    return 0
                if idle:
                    continue
                raise ConnectionError("the rest of a message did not come") from None
            if count == 0:
                raise EndedError("the connection was closed")
            return count

    def read_exactly(self, count: int) -> bytes:
        """So many bytes."""
        data = bytearray(count)
        self.read(memoryview(data))
        return bytes(data)

    def send(self, *parts: Bytes | Array) -> None:
        """Send all parts, one behind the other."""
        try:
            if len(parts) == 1 and not self.secure:
                self.socket.sendall(byte_view(parts[0]))
                return
            views = [byte_view(part) for part in parts if len(part)]
            if self.secure:
                self._send_sealed(views)
                return
            while views:
                _drop(views, self.socket.sendmsg(views))
        except (BlockingIOError, TimeoutError):
            raise ConnectionError("the other end does not read") from None

    def send_some(self, views: list[memoryview]) -> None:
        """Send as much as can be sent without waiting, and leave the rest in the list."""
        while views:
            try:
                sent = self.socket.sendmsg(views, (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            _drop(views, sent)

    def send_file(self, file: int, begin: int, end: int) -> None:
        """Send a part of a file, which takes no copy."""
        assert not self.secure, "a file would not be encrypted"
        try:
            while begin < end:
                begin += os.sendfile(self.socket.fileno(), file, begin, end - begin)
        except (BlockingIOError, TimeoutError):
            raise ConnectionError("the other end does not read") from None

    def _send_sealed(self, views: list[memoryview]) -> None:
        corks = self._corks and sum(map(len, views)) > LARGE
        if corks:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        for view in views:
            self.socket.sendall(view)
        if corks:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)

    def connected(self) -> bool:
        """Whether the other end has not hung up, as far as is known; reads nothing."""
        poll = select.poll()
        poll.register(self.socket.fileno(), _HUNG_UP)
        return not any(event & (_HUNG_UP | select.POLLHUP) for _, event in poll.poll(0))

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):  # it was closed by the other end
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

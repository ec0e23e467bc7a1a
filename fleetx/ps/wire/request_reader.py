"""The requests of one connection, read as they come: several that arrive together are one read."""

from fleetx.ps.wire.frames import HEADER, REQUESTS, Frame, unpacked
from fleetx.ps.wire.pipes import Pipe

LEAST, ROOM = 1 << 16, 3 << 16
"""Bytes that are read at once: of a request that is waited for, and of several small ones."""
_WORD = 8
"""What the bytes of arrays are aligned to."""


class RequestReader:
    """Keeps what has come of later requests; a body is good until the next one is asked for."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._bytes = memoryview(bytearray(LEAST))
        self._begin = self._end = 0
        self._apart = memoryview(bytearray(0))
        """For bodies that do not fit in, or do not begin at a whole word."""
        self._frame: Frame | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing of the next request has come."""
        return self._begin == self._end

    def poll(self) -> None:
        """Read what has come, without waiting for more; at most ``ROOM`` bytes are kept."""
        if len(self._bytes) < ROOM:
            self._bytes = memoryview(bytearray(self._bytes).ljust(ROOM))
        self._make_room()
        self._end += self._pipe.read_some(self._bytes[self._end :], wait=False)

    @property
    def head(self) -> Frame | None:
        """The header of the next request, if it is here."""
        if self._frame is None and self._end - self._begin >= HEADER.size:
            begin = self._begin
            self._frame = unpacked(self._bytes[begin : begin + HEADER.size], REQUESTS)
        return self._frame

    def complete(self, frame: Frame) -> bool:
        """Whether all of the next request, whose header this is, is here."""
        return self._end - self._begin >= HEADER.size + frame.body

    def next(self) -> tuple[Frame, memoryview]:
        """The next request, once it has come."""
        while (frame := self.head) is None:
            self._make_room()
            self._end += self._pipe.read_some(self._bytes[self._end : LEAST], idle=self.empty)
        if not self.complete(frame):
            self._frame = None
            return frame, self._completed(self._begin + HEADER.size, frame.body)
        return frame, self.taken(frame)

    def taken(self, frame: Frame) -> memoryview:
        """The body of the next request, whose header this is, and of which all is here."""
        self._frame = None
        begin = self._begin + HEADER.size
        self._begin = end = begin + frame.body
        body = self._bytes[begin:end]
        return body if begin % _WORD == 0 else self._copied(body)

    def _make_room(self) -> None:
        """Let what is kept be at the beginning."""
        if self._begin:
            kept = self._end - self._begin
            self._bytes[:kept] = self._bytes[self._begin : self._end]
            self._begin, self._end = 0, kept

    def _completed(self, begin: int, size: int) -> memoryview:
        """A body of which only some has come."""
        here = self._end - begin
        body = self._room_apart(size)
        body[:here] = self._bytes[begin : self._end]
        self._begin = self._end = 0
        self._pipe.read(body[here:])
        return body

    def _copied(self, body: memoryview) -> memoryview:
        copy = self._room_apart(len(body))
        copy[:] = body
        return copy

    def _room_apart(self, size: int) -> memoryview:
        if size > len(self._apart):
            self._apart = memoryview(bytearray(size))
        return self._apart[:size]

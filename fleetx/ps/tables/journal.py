"""A log of changes: what was acknowledged is in it, so a killed server loses nothing."""

import contextlib
import os
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from fleetx.ps.wire.arrays import Array
from fleetx.ps.wire.pipes import Bytes, byte_view

_HEAD = struct.Struct("<IIQQ")
_TAIL = struct.Struct("<Q")
_MAGIC = 0x4C4F4746
LEAST_GROWTH, MOST_GROWTH = 1 << 20, 8 << 20
"""Bytes that a file is made longer by at once; as many as it has, within these.

Not more, for there are file systems that cannot reserve: there it means a write for each block, and
pushes wait for it.
"""


class Record(NamedTuple):
    """One change."""

    number: int
    kind: int
    data: memoryview


class Journal:
    """Numbered records in files; each file begins with the number in its name.

    A record is in the operating system's hands when ``append`` returns, so it survives the death of
    the process; ``durable`` waits for the disk, so that it survives that of the machine.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._folder, self._durable = folder, durable
        folder.mkdir(parents=True, exist_ok=True)
        self.number = 0
        """The number of the last record."""
        self._file: int | None = None
        self._end, self._last = 0, 0
        """Where the records in the file end, and how long the last one is."""
        self._allocated = 0
        """Where the file ends: behind the records it is zeros, in blocks that it owns already."""
        self._broken = ""
        self.bytes = 0
        """What was written since the last cut."""

    def records(self, after: int = 0) -> Iterator[Record]:
        """Those behind a number, in order; stops where a dying process was interrupted."""
        for path in self._paths():
            data = memoryview(path.read_bytes())
            while (record := _first(data)) is not None:
                self.number = max(self.number, record.number)
                self.bytes += _size(record)
                if record.number > after:
                    yield record
                data = data[_size(record) :]

    def append(self, kind: int, parts: list[Bytes | Array]) -> int:
        """Write a record and return its number; one that cannot be written leaves nothing behind.

        Half a record would hide all later ones from recovery, which stops at it.
        """
        if self._broken:
            raise OSError(self._broken)
        views = [byte_view(part) for part in parts if len(part)]
        length = sum(len(view) for view in views)
        number = self.number + 1
        if self._file is None:
            self._file, self._end, self._allocated = self._open(number), 0, 0
        self._reserve(self._end + _HEAD.size + length + _TAIL.size)
        pieces: list[bytes | memoryview] = [_HEAD.pack(_MAGIC, kind, number, length), *views]
        try:
            tail = _TAIL.pack(~number & 0xFFFFFFFFFFFFFFFF)
            _write(self._file, self._end, [*pieces, tail])
            if self._durable:
                os.fdatasync(self._file)
        except BaseException:
            self._truncate(self._end)
            raise
        self._last = _HEAD.size + length + _TAIL.size
        self.number, self._end, self.bytes = number, self._end + self._last, self.bytes + self._last
        return number

    def _reserve(self, end: int) -> None:
        """Have blocks before they are written: one by one they cost more than what they hold."""
        assert self._file is not None
        if end <= self._allocated:
            return
        more = max(end - self._allocated, min(max(self._allocated, LEAST_GROWTH), MOST_GROWTH))
        # A disk that is nearly full may still have room for the record.
        with contextlib.suppress(AttributeError, OSError):
            os.posix_fallocate(self._file, self._allocated, more)
            self._allocated += more

    def take_back(self) -> None:
        """Remove the last record: what it speaks of did not happen."""
        assert self._last, "one record can be taken back, right after it was written"
        self._end, self.bytes = self._end - self._last, self.bytes - self._last
        self.number, self._last = self.number - 1, 0
        self._truncate(self._end)

    def _truncate(self, end: int) -> None:
        assert self._file is not None
        try:
            os.ftruncate(self._file, end)
            self._allocated = end
        except OSError as error:
            self._broken = f"the log in {self._folder} ends in half a record ({error})"
            raise

    def cut(self) -> int:
        """End the file: later records go to another one. Returns the number of the last record."""
        self.close()
        self.bytes = 0
        return self.number

    def forget(self, upto: int) -> None:
        """Remove the files all of whose records have numbers up to this one."""
        paths = self._paths()
        for path, later in pairwise(paths):
            if int(later.stem) <= upto + 1:
                path.unlink()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # zeros harm nobody
                os.ftruncate(self._file, self._end)
            os.close(self._file)
            self._file, self._last = None, 0

    def _open(self, number: int) -> int:
        path = self._folder / f"{number:020d}.log"
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("*.log"))


def _first(data: memoryview) -> Record | None:
    if len(data) < _HEAD.size:
        return None
    magic, kind, number, length = _HEAD.unpack(data[: _HEAD.size])
    end = _HEAD.size + length
    if magic != _MAGIC or len(data) < end + _TAIL.size:
        return None
    if _TAIL.unpack(data[end : end + _TAIL.size])[0] != ~number & 0xFFFFFFFFFFFFFFFF:
        return None
    return Record(number, kind, data[_HEAD.size : end])


def _size(record: Record) -> int:
    return _HEAD.size + len(record.data) + _TAIL.size


def _write(file: int, at: int, pieces: list[bytes | memoryview]) -> None:
    """Hand over all bytes; one call is enough unless the disk is full or a signal comes."""
    left = [memoryview(piece) for piece in pieces]
    while left:
        written = os.pwritev(file, left, at)
        at += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = left[0][written:]

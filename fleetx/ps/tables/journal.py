"""A log of changes: what was acknowledged is in it, so a killed server loses nothing."""

import contextlib
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from fleetx.ps.tables import log_file
from fleetx.ps.tables.checksums import DamagedError
from fleetx.ps.tables.log_file import Record
from fleetx.ps.tables.log_list import LogList
from fleetx.ps.wire.arrays import Array
from fleetx.ps.wire.pipes import Bytes, byte_view

LEAST_GROWTH, MOST_GROWTH = 1 << 20, 8 << 20
"""Bytes that a file is made longer by at once; as many as it has, within these.

Not more, for there are file systems that cannot reserve: there it means a write for each block, and
pushes wait for it.
"""


class Journal:
    """Numbered records in files; each file begins with the number in its name.

    A record is in the operating system's hands when ``append`` returns, so it survives the death of
    the process; ``durable`` waits for the disk, so that it survives that of the machine. A record
    that changed since, and a file that is missing, raise ``DamagedError`` when they are read.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._folder, self._durable = folder, durable
        folder.mkdir(parents=True, exist_ok=True)
        self._list = LogList.opened(folder)
        self._seed = log_file.seed_of(self.identity)
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

    @property
    def identity(self) -> str:
        """By which others know this journal."""
        return self._list.identity

    @property
    def checkpoint(self) -> str:
        """The identity of the checkpoint that this journal continues; empty if there is none."""
        return self._list.checkpoint

    @property
    def first(self) -> int:
        """The number of the oldest record that may be there."""
        return _number(self._list.files[0]) if self._list.files else 1

    @property
    def used(self) -> bool:
        """Whether it ever had a record."""
        return self.first > 1 or next(self._all_records(), None) is not None

    def records(self, after: int = 0) -> Iterator[Record]:
        """Those behind a number, in order; stops where a dying process was interrupted."""
        self._remove_strangers()
        self.number = self.first - 1
        for record in self._all_records():
            self.number = record.number
            self.bytes += len(record.data) + log_file.RECORD_EXTRA
            if record.number > after:
                yield record

    def _all_records(self) -> Iterator[Record]:
        last = self.first - 1
        for path in self._list.paths():
            if _number(path.name) != last + 1:
                raise DamagedError(
                    f"{path} begins with record {_number(path.name)}, and the log before it ends "
                    f"with record {last}: what was between is lost"
                )
            for record in self._records_of(path):
                last = record.number
                yield record

    def _records_of(self, path: Path) -> Iterator[Record]:
        data = memoryview(path.read_bytes())
        if log_file.check_head(path, data, self.identity) != _number(path.name):
            raise DamagedError(f"{path} had another name when it was written")
        return log_file.records(path, data, self.identity)

    def _remove_strangers(self) -> None:
        """Remove files that a dying process had not listed yet, or was about to remove."""
        for path in self._list.strangers():
            found = self._records_of(path)
            if _number(path.name) >= self.first and next(found, None) is not None:
                raise DamagedError(f"{path} holds records, and the list of logs does not name it")
            path.unlink()

    def append(self, kind: int, parts: list[Bytes | Array]) -> int:
        """Write a record and return its number; one that cannot be written leaves nothing behind.

        Half a record would hide all later ones from recovery, which stops at it.
        """
        if self._broken:
            raise OSError(self._broken)
        views = [byte_view(part) for part in parts if len(part)]
        number = self.number + 1
        if self._file is None:
            self._file = self._open(number)
            self._end = self._allocated = log_file.FILE_HEAD
        length = sum(map(len, views))
        size = length + log_file.RECORD_EXTRA
        if self._end + size > self._allocated:
            self._reserve(self._end + size)
        pieces = log_file.record_bytes(kind, number, views, length, self._seed)
        try:
            if os.pwritev(self._file, pieces, self._end) != size:
                _write(self._file, self._end, pieces)
            if self._durable:
                os.fdatasync(self._file)
        except BaseException:
            self._truncate(self._end)
            raise
        self._last = size
        self.number, self._end, self.bytes = number, self._end + size, self.bytes + size
        return number

    def _reserve(self, end: int) -> None:
        """Have blocks before they are written: one by one they cost more than what they hold."""
        assert self._file is not None
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

    def continue_from(self, checkpoint: str, upto: int) -> None:
        """Name the checkpoint that stands for what was, and remove the files that it replaces.

        Args:
            checkpoint: its identity.
            upto: the last record that it holds; a file goes if all of its records are among them.
        """
        names = self._list.files
        gone = {name for name, later in pairwise(names) if _number(later) <= upto + 1}
        kept = tuple(name for name in names if name not in gone)
        self._list = self._list.changed(files=kept, checkpoint=checkpoint)
        for name in gone:
            (self._folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # zeros harm nobody
                os.ftruncate(self._file, self._end)
            os.close(self._file)
            self._file, self._last = None, 0

    def _open(self, number: int) -> int:
        """A new file, which is on the list before a record is in it."""
        path = self._folder / f"{number:020d}.log"
        partial = path.with_name(f"{path.name}.partial")
        file = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write(file, 0, [log_file.file_head(self.identity, number)])
            os.replace(partial, path)  # one that was begun, and has no record, goes
            if path.name not in self._list.files:
                self._list = self._list.changed(files=(*self._list.files, path.name))
        except BaseException:
            os.close(file)
            raise
        return file


def _number(name: str) -> int:
    """The number of the first record of a file."""
    return int(name.partition(".")[0])


def _write(file: int, at: int, pieces: list[bytes | memoryview]) -> None:
    """Hand over all bytes, in several calls if one does not take them: the disk may be full."""
    left = [memoryview(piece) for piece in pieces]
    while left:
        written = os.pwritev(file, left, at)
        at += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = left[0][written:]

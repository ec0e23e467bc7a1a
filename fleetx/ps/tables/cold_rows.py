"""Rows that are not in memory: records in a file, in the order of the hashes of their ids.

The file is a table with open addressing, mapped to memory, so a record is found, read and written
in one place. It has no name: it ends with the process, however that ends. Nothing in it is believed
after a death, for the log and the save behind it know all rows; so it needs neither transactions
nor a tree, and need not wait for the disk.
"""

import mmap
import os
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np

from fleetx.ps.tables.hashing import parts_of
from fleetx.ps.tables.kernels.numpy_records import record_homes
from fleetx.ps.wire.arrays import Array, Ids

LOAD, GROWTH = 0.75, 1.25
"""The share of places that may be taken, and by how much the file becomes longer then."""
SLACK = 1024
"""Places behind the last home, so that a probe never has to wrap around."""
SMALLEST = 1 << 12
STEP = 1 << 12
"""Places that a file which grows goes through at once."""
_TAKEN = 1
"""Beside the stamps of a record, whose lowest bits are not used."""


class NoRoomError(OSError):
    """A disk is full; nothing was changed, and once there is room it can be asked again."""


class ColdRows:
    """Records by id; each begins with the fields ``id`` and ``stamps``."""

    def __init__(self, folder: Path | None, record: np.dtype[np.void], kernels: ModuleType) -> None:
        self._kernels, self._words = kernels, -(-record.itemsize // 8)
        self.record = _padded(record, 8 * self._words)
        """How a record looks here."""
        self._folder = folder
        self._begin()

    def _begin(self) -> None:
        self._size, self._places = 0, SMALLEST
        self._file = tempfile.TemporaryFile(prefix="cold-", dir=self._folder)  # noqa: SIM115
        self._allocate(self._bytes(SMALLEST))
        self._map = mmap.mmap(self._file.fileno(), self.nbytes)
        self._table = self._view()

    def _bytes(self, places: int) -> int:
        return (places + SLACK) * 8 * self._words

    def _allocate(self, size: int) -> None:
        """Have room on the disk before it is used.

        A page of the map for which there is none would end the process when it is written.
        """
        before = os.fstat(self._file.fileno()).st_size
        try:
            os.posix_fallocate(self._file.fileno(), before, size - before)
        except OSError as error:
            os.truncate(self._file.fileno(), before)
            where = self._folder or tempfile.gettempdir()
            what = f"{error.strerror}: rows cannot be kept on the disk of {where}, which would take"
            raise NoRoomError(error.errno, f"{what} {size - before:,} bytes more") from error

    def _view(self) -> Ids:
        if hasattr(mmap, "MADV_RANDOM"):
            self._map.madvise(mmap.MADV_RANDOM)  # rows are asked for here and there
        return np.frombuffer(self._map, np.int64).reshape(-1, self._words)

    def put(self, records: Array) -> None:
        """Keep records of different ids, in the place of those of the same ids."""
        if self._size + len(records) > self._places * LOAD:
            self._make_room(len(records) - len(self.find(records["id"].copy())))
        self._put(records.view(np.int64).reshape(len(records), self._words))

    def _make_room(self, new: int) -> None:
        while self._size + new > self._places * LOAD:
            self._grow()

    def _put(self, rows: Ids) -> None:
        complete = False
        while not complete:
            added, complete = self._kernels.put_records(self._table, self._places, rows)
            self._size += added
            if not complete:
                self._grow()

    def _grow(self) -> None:
        """Have more places, in the same file and by one pass through it."""
        places = int(self._places * GROWTH) + 1
        self._allocate(self._bytes(places))
        before, self._places = len(self._table), places
        self._table = np.empty((0, self._words), np.int64)  # memory with a view does not grow
        self._map.resize(self._bytes(places))
        self._table = self._view()
        held, late = np.empty((STEP, self._words), np.int64), list[Ids]()
        for begin in range((before - 1) // STEP * STEP, -1, -STEP):
            end = min(before, begin + STEP)
            left = self._kernels.move_records(self._table, begin, end, places, held)
            late.append(held[:left].copy())
        rows = np.concatenate(late)
        self._size -= len(rows)
        self._put(rows)

    def find(self, ids: Ids) -> Array:
        """The records of those ids that have one, in no order."""
        at = np.empty(len(ids), np.int64)
        if not self._kernels.find_records(self._table, self._places, ids, at):
            return np.empty(0, self.record)
        return self._records(self._table[at[at >= 0]])

    def _records(self, rows: Ids) -> Array:
        rows[:, 1] &= ~_TAKEN
        return rows.view(self.record)[:, 0]

    def part(self, number: int, bits: int) -> Array:
        """The records in one of ``2**bits`` equal parts of the hash range."""
        begin, end = self._range(number, bits)
        rows = self._table[begin:end]
        rows = rows[rows[:, 1] & _TAKEN == 1]
        if bits:  # some at the beginning are of the part before, some at the end of the next one
            rows = rows[parts_of(rows[:, 0], bits) == number]
        return self._records(rows)

    def _range(self, number: int, bits: int) -> tuple[int, int]:
        """The places of one part, up to a free one."""
        if number + 1 == 1 << bits:
            return self._home(number, bits) if number else 0, len(self._table)
        begin, end = self._home(number, bits), self._home(number + 1, bits)
        while (taken := self._table[end : end + SLACK, 1] & _TAKEN).all():  # the last one is free
            end += SLACK
        return begin, end + int(taken.argmin())

    def _home(self, number: int, bits: int) -> int:
        begin = np.array([number], np.uint64) << np.uint64(64 - bits)
        return int(record_homes(begin, self._places)[0])

    def delete(self, ids: Ids) -> int:
        """Forget records; returns how many there were."""
        gone: int = self._kernels.delete_records(self._table, self._places, ids)
        self._size -= gone
        return gone

    def clear(self) -> None:
        """Forget all records."""
        self._begin()

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """How long the file is."""
        return self._bytes(self._places)


def _padded(record: np.dtype[np.void], size: int) -> np.dtype[np.void]:
    """The same fields in whole numbers of 64 bits."""
    assert record.fields is not None
    assert record.names is not None
    fields = [record.fields[name] for name in record.names]
    return np.dtype(
        {
            "names": record.names,
            "formats": [field[0] for field in fields],
            "offsets": [field[1] for field in fields],
            "itemsize": size,
        }
    )

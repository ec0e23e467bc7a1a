"""Rows that are not in memory: records in segments of a file, and in memory where each of them is.

Records that come are collected, and written as a segment when there are enough of them. One that
goes leaves a hole; of segments with many holes the rest is collected again. Those that come
together are mostly neighbours in the hash range, and so are those of a segment.
"""

import errno
from pathlib import Path
from types import ModuleType

import numpy as np

from fleetx.ps.tables.hashing import mixed, parts_of
from fleetx.ps.tables.kernels.numpy_places import FREE, words_at
from fleetx.ps.tables.places import Places
from fleetx.ps.tables.segment_file import SegmentFile
from fleetx.ps.tables.segment_list import SegmentList
from fleetx.ps.wire.arrays import Array, Ids

SEGMENT_RECORDS = 1 << 12
"""Records of a segment; fewer where ``SHARE`` of the memory has no room for so many."""
SHARE = 32
PAGES_BYTES = 1 << 13
"""Bytes of a segment at least: those of less than a page would move."""
HOLES = 0.5
"""As many holes as this share of what is alive are left alone."""
FEW_HOLES = 4
"""Segments full of holes that are left alone in any case."""
FULL = 0.75
"""A segment of which more is alive is left alone, unless there are twice as many holes."""
PACE = 4
"""So many records are moved at most for each one that comes: nobody waits for long."""
MANY = 64
"""A segment is read as a whole for a part that needs one of so many of its records."""
LAST_HASH = (1 << 64) - 1


class NoRoomError(OSError):
    """A disk is full; nothing was changed, and once there is room it can be asked again."""


class ColdRows:
    """Records by id; each begins with the field ``id`` and consists of words of eight bytes."""

    def __init__(
        self,
        folder: Path | None,
        record: np.dtype[np.void],
        kernels: ModuleType,
        memory: int = 1 << 30,
    ) -> None:
        assert record.itemsize % 8 == 0
        self._record, self._kernels, self._wide = record, kernels, record.itemsize // 8
        self._size = _records_of(record.itemsize, memory)
        self._shift = self._size.bit_length() - 1
        words = self._size * (1 + self._wide)
        self._buffer = np.empty(words, np.int64)
        """The segment that is filled: ids, by which it is looked through later, then records."""
        self._file = SegmentFile(folder, 8 * words)
        self._begin()

    def _begin(self) -> None:
        self._places, self._segments = Places(self._kernels), SegmentList()
        self._emptied = list[int]()
        """Segments that are not needed any more, and are still in the file."""
        self._asked_for: Ids = np.empty(0, np.int64)
        """Segments that the last part was in."""
        self._open_next()

    def _open_next(self) -> None:
        address = int(self._buffer.__array_interface__["data"][0])
        self._number = self._segments.take(address + 8 * self._size)
        self._filled = 0

    def reserve(self, records: int) -> None:
        """Have room on the disk for so many more before anything is changed.

        Raises:
            NoRoomError: if there is none.
        """
        segments = (self._filled + records) // self._size + 1
        if (self._segments.used + segments) << self._shift > FREE:
            what = f"a server has {FREE:,} places for rows of a table that are not in memory"
            raise NoRoomError(errno.EFBIG, f"{what}, and too few are free; take more servers")
        try:
            self._file.reserve(segments)
        except OSError as error:
            raise NoRoomError(*error.args) from error

    def expect(self, records: int) -> None:
        """So many will be here soon: make room in memory at once."""
        self._places.reserve(records - len(self), self._end, self._put_in)

    def put(self, records: Array) -> None:
        """Keep records, in the place of those of the same ids."""
        ids = records["id"].copy()
        places, _ = self._look_for(ids)
        old = places >= 0
        self._keep(ids, records)
        self.forget(ids[old], places[old])
        self._collect(ids)

    def add(self, records: Array) -> None:
        """Keep records of ids that have none."""
        ids = records["id"].copy()
        self._keep(ids, records)
        self._collect(ids)

    def _keep(self, ids: Ids, records: Array) -> None:
        """Append all records, or none if there is no room."""
        self.reserve(len(ids))
        words, places, done = records.view(np.int64).reshape(-1, self._wide), np.empty_like(ids), 0
        try:
            while done < len(ids):
                if self._filled == self._size:
                    self._seal()
                end = min(len(ids), done + self._size - self._filled)
                first = self._append(ids[done:end], words[done:end])
                places[done:end] = np.arange(first, first + end - done)
                done = end
        except NoRoomError:  # some disks give less than they promised
            self.forget(ids[:done], places[:done])
            raise

    def _append(self, ids: Ids, words: Array) -> int:
        """Add records to the segment that is filled; returns the place of the first of them."""
        begin, end = self._filled, self._filled + len(ids)
        self._buffer[begin:end] = ids
        self._buffer[self._size :].reshape(-1, self._wide)[begin:end] = words
        self._filled = end
        self._segments.live[self._number] += len(ids)
        first = self._first(self._number) + begin
        self._places.keep(ids, first, self._end, self._put_in)
        return first

    def _first(self, number: int) -> int:
        """The place of the first record of a segment."""
        return number << self._shift

    @property
    def _end(self) -> int:
        """Behind all places."""
        return self._first(len(self._segments))

    def _put_in(self, places: Places, marks: Array) -> bool:
        """Add all records whose places are marked to an index that is empty, if it has room."""
        for number in np.flatnonzero(self._segments.sealed).tolist():
            if not places.keep_marked(
                self._words(number)[: self._size], self._first(number), marks
            ):
                return False
        return places.keep_marked(self._buffer[: self._filled], self._first(self._number), marks)

    def _words(self, number: int) -> Ids:
        """A segment of the file: its ids, and its records."""
        address = int(self._segments.addresses[number]) - 8 * self._size
        return words_at(address, len(self._buffer))

    def _seal(self) -> None:
        """Write the segment that is full, and begin another one.

        Raises:
            NoRoomError: if it cannot be written; nothing is changed then.
        """
        try:
            address = self._file.put(self._number, self._buffer, self._emptied)
        except OSError as error:
            raise NoRoomError(*error.args) from error
        first = int(mixed(self._buffer[:1])[0])
        self._segments.seal(self._number, address + 8 * self._size, first)
        self._segments.give_back(self._emptied)
        self._emptied = []
        self._open_next()

    def _collect(self, ids: Ids) -> None:
        """Where there are too many holes, bring together what is left of segments near these ids.

        So the records of a segment stay neighbours.
        """
        if not len(ids):
            return
        hashes, moved = mixed(ids), 0
        first, last = int(hashes.min()), int(hashes.max())
        while self._holes > self._allowed_holes and moved < PACE * len(ids) + self._size:
            victim = self._segments.emptiest(first, last)
            if victim < 0 or self._segments.live[victim] > FULL * self._size:
                if self._holes < 2 * self._allowed_holes:
                    return  # it will be the turn of others
                victim = self._segments.emptiest(0, LAST_HASH)
            moved += int(self._segments.live[victim]) + 1
            try:
                self.reserve(self._size)
                self._move(victim)
            except NoRoomError:
                return  # what was moved is in its new place, and the rest where it was

    @property
    def _holes(self) -> int:
        """Places in the file whose records are gone."""
        return self._first(int(self._segments.sealed.sum())) - self._alive

    @property
    def _alive(self) -> int:
        return len(self) - int(self._segments.live[self._number])

    @property
    def _allowed_holes(self) -> int:
        return int(HOLES * self._alive) + FEW_HOLES * self._size

    def _move(self, victim: int) -> None:
        """Append what is alive of a segment to the one that is filled."""
        source, done = self._words(victim), 0
        while done < self._size:
            if self._filled == self._size:
                self._seal()
            before = self._filled
            done, self._filled = self._kernels.move_records(
                *(self._places.lines, self._places.homes),
                *(source, done, self._first(victim)),
                *(self._buffer, before, self._size, self._wide, self._first(self._number)),
            )
            self._segments.live[self._number] += self._filled - before
            self._segments.live[victim] -= self._filled - before
        self._segments.sealed[victim] = False
        self._emptied.append(victim)

    def find(self, ids: Ids) -> tuple[Array, Ids]:
        """The records of those ids that have one, in their order, and their places."""
        out = np.empty(len(ids), self._record)
        places, count = self._look_for(ids, out)
        return out[:count], places[places >= 0]

    def _look_for(self, ids: Ids, out: Array | None = None) -> tuple[Ids, int]:
        places = np.empty(len(ids), np.int64)
        words = np.empty(0, np.int64) if out is None else out.view(np.int64)
        count: int = self._kernels.find_places(
            *(self._places.lines, self._places.homes, ids),
            *(self._segments.addresses, self._shift, self._wide),
            *(places, words, out is not None),
        )
        return places, count

    def knows(self, ids: Ids) -> Array:
        """Whether each id has a record."""
        known: Array = self._look_for(ids)[0] >= 0
        return known

    def forget(self, ids: Ids, places: Ids) -> None:
        """Forget the records of ids, which are at these places."""
        self._places.forget(ids, places, self._segments.live, self._shift)

    def delete(self, ids: Ids) -> int:
        """Forget records of ids, each once; returns how many there were."""
        places, count = self._look_for(ids)
        known = places >= 0
        self.forget(ids[known], places[known])
        return count

    def part(self, number: int, bits: int) -> Array:
        """The records in one of ``2**bits`` equal parts of the hash range."""
        places = self._places.part(number, bits)
        self._ask_for(places)
        out = np.empty(len(places), self._record)
        where = self._segments.addresses, self._shift, self._wide
        self._kernels.copy_records(places, *where, out.view(np.int64))
        inside: Array = out[parts_of(out["id"], bits) == number] if bits else out
        return inside

    def _ask_for(self, places: Ids) -> None:
        """Let the disk read segments of which these places, and soon others, are needed.

        Else it would be asked for a page at a time. Those of the part before are on their way.
        """
        numbers, counts = np.unique(places >> self._shift, return_counts=True)
        numbers = numbers[counts * MANY >= self._size]
        for number in np.setdiff1d(numbers, self._asked_for, assume_unique=True).tolist():
            if self._segments.sealed[number]:
                self._file.ask_for(int(self._segments.addresses[number]) - 8 * self._size)
        self._asked_for = numbers

    def clear(self) -> None:
        """Forget all records."""
        self._file.clear()
        self._begin()

    def __len__(self) -> int:
        return self._places.size

    @property
    def nbytes(self) -> int:
        """How long the file is."""
        return self._file.nbytes

    @property
    def memory(self) -> int:
        """Bytes of memory in use."""
        return self._places.nbytes + self._buffer.nbytes


def _records_of(record_bytes: int, memory: int) -> int:
    """How many records a segment has: a power of two."""
    size = 8
    while 2 * size <= SEGMENT_RECORDS and 2 * size * record_bytes * SHARE <= memory:
        size *= 2
    while size * record_bytes < PAGES_BYTES:
        size *= 2
    return size

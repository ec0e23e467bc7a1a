"""From ids to rows: open addressing in one array, in the order of the hashes."""

from types import ModuleType

import numpy as np

from fleetx.ps.tables.arena import Arena
from fleetx.ps.tables.hashing import mixed
from fleetx.ps.tables.kernels.numpy_kernels import PLACES, SLOT, SLOT_BITS, homes
from fleetx.ps.wire.arrays import Array, Ids

LOAD = 0.6
"""The share of places that may be taken; beyond it probes become long."""
GROWTH = 1.2
"""Small steps keep the index small, and moving it is one pass through memory in order.

Both together make at most 32 bytes an id: half of the smallest usual row, 16 floats without state.
"""
INDEX_BYTES = 32
"""What an id takes at most."""
SLACK = 1024
"""Places behind the last home, so that a probe never has to wrap around."""
SMALLEST = 1 << 12

DAY_BITS, DAY_SHIFT = 13, SLOT_BITS
MARK_BITS, MARK_SHIFT = 16, SLOT_BITS + DAY_BITS
DAY = ((1 << DAY_BITS) - 1) << DAY_SHIFT
MARK = ((1 << MARK_BITS) - 1) << MARK_SHIFT
"""Stamps beside the row: the day on which an id was last met, the last save before it changed."""


class Index:
    """The words of all ids: row, day and mark."""

    def __init__(self, kernels: ModuleType, ids: int = 0) -> None:
        self._kernels = kernels
        self.size = 0
        self._allocate(max(SMALLEST, int(ids / LOAD)))

    def _allocate(self, places: int) -> None:
        places = -(-places // PLACES) * PLACES
        self._places = places
        self._arena = Arena(2, np.int64, places + SLACK)
        self._pairs: Ids = self._arena.array[: places + SLACK].reshape(-1)
        self._pairs[1::2] = -1

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        return int(self._pairs.nbytes)

    def find(self, ids: Ids, keep: int = -1, stamp: int = 0) -> tuple[Ids, int]:
        """The row of each id, -1 where there is none, and how many have none."""
        slots = np.empty(len(ids), np.int64)
        missing: int = self._kernels.find(self._pairs, self._places, ids, slots, keep, stamp)
        return slots, missing

    def reserve(self, ids: int) -> None:
        """Make room for so many ids at once.

        Needed before ids come in the order of their hashes: an index that is still small would be
        overfull in one place and empty in all others.
        """
        places = int(ids / LOAD) + 1
        if places > self._places:
            old = self._pairs
            self._allocate(places)
            while not self._kernels.rebuild(old, self._pairs, self._places):
                self._allocate(int(self._places * GROWTH))

    def insert(self, ids: Ids, words: Ids) -> None:
        """Add ids, all different and none of them known."""
        while self.size + len(ids) > self._places * LOAD:
            self._grow()
        done = 0
        while done < len(ids):
            done += self._insert(ids[done:], words[done:])
        self.size += len(ids)

    def _insert(self, ids: Ids, words: Ids) -> int:
        fitted: int = self._kernels.insert(self._pairs, self._places, ids, words)
        if fitted == len(ids):
            return fitted
        # The end was reached. Some may have been added: the larger index tells which ones.
        self._grow()
        slots, _ = self.find(ids)
        left = slots < 0
        return len(ids) if not left.any() else self._rest(ids[left], words[left], len(ids))

    def _rest(self, ids: Ids, words: Ids, total: int) -> int:
        done = 0
        while done < len(ids):
            done += self._insert(ids[done:], words[done:])
        return total

    def _grow(self) -> None:
        old, places = self._pairs, self._places
        while True:
            places = int(places * GROWTH) + 1
            self._allocate(places)
            if self._kernels.rebuild(old, self._pairs, self._places):
                return

    def words(self) -> tuple[Ids, Ids]:
        """All ids and their words, as copies."""
        live = self._pairs[1::2] >= 0
        return self._pairs[0::2][live], self._pairs[1::2][live]

    def replace(self, ids: Ids, words: Ids) -> None:
        """Hold these ids and no others."""
        self.size = 0
        self._allocate(max(SMALLEST, int(len(ids) / LOAD) + 1))
        self.insert(ids, words)

    def part(self, number: int, bits: int) -> tuple[Ids, Ids]:
        """Ids and words in one of ``2**bits`` equal parts of the hash range, as copies."""
        chosen = self._places_in(*self._range(number, bits), number, bits)
        return self._pairs[0::2][chosen], self._pairs[1::2][chosen]

    def prune(self, number: int, bits: int, gone: Array) -> None:
        """Forget ids of a part: those for which ``gone`` is true, in the order of ``part``.

        Everything between two free places is taken out and put in again: who was behind one that is
        gone may come nearer to its home. Nobody else moves.
        """
        begin, end = self._range(number, bits)
        keys, words = self._pairs[2 * begin : 2 * end : 2], self._pairs[2 * begin + 1 : 2 * end : 2]
        words[self._places_in(begin, end, number, bits)[gone] - begin] = -1
        stay = words >= 0
        kept_ids, kept_words = keys[stay], words[stay]
        keys[:], words[:] = 0, -1
        fitted: int = self._kernels.insert(self._pairs, self._places, kept_ids, kept_words)
        assert fitted == len(kept_ids), "there was room for them before"
        self.size -= int(np.count_nonzero(gone))

    def _range(self, number: int, bits: int) -> tuple[int, int]:
        """The places of one part, up to a free one."""
        shift = np.uint64(64 - bits)
        begin, end = 0, self._places
        if number:
            begin = int(homes(np.array([number], np.uint64) << shift, self._places)[0])
        if number + 1 < 1 << bits:
            end = int(homes(np.array([number + 1], np.uint64) << shift, self._places)[0])
        words = self._pairs[1::2]
        while (words[end : end + SLACK] >= 0).all():  # the last place is always free
            end += SLACK
        return begin, end + int((words[end : end + SLACK] < 0).argmax())

    def _places_in(self, begin: int, end: int, number: int, bits: int) -> Ids:
        """Those places of a range that hold ids of a part: some before it come from another one."""
        chosen = np.flatnonzero(self._pairs[2 * begin + 1 : 2 * end : 2] >= 0) + begin
        shift = np.uint64(64 - bits)
        inside = (mixed(self._pairs[0::2][chosen]) >> shift) == np.uint64(number)
        places: Ids = chosen[inside]
        return places


def rows_of(words: Ids) -> Ids:
    """The rows that the words speak of."""
    return words & SLOT


def stamped(rows: Array, day: int, mark: int) -> Ids:
    """Words for rows that were met on this day and changed after this save."""
    return rows.astype(np.int64) | (day << DAY_SHIFT) | (mark << MARK_SHIFT)

"""From ids to rows: open addressing in one array, in the order of the hashes."""

from types import ModuleType
from typing import NamedTuple

import numpy as np

from fleetx.ps.tables.arena import Arena
from fleetx.ps.tables.hashing import mixed
from fleetx.ps.tables.kernels.numpy_kernels import PLACES, SLOT, SLOT_BITS, homes
from fleetx.ps.tables.slot_pool import SlotPool
from fleetx.ps.wire.arrays import Array, Ids


class Fullness(NamedTuple):
    """How much of an index is taken."""

    load: float
    """The share of places that may be taken."""
    growth: float
    """By how much it becomes longer then: small steps keep it small, and each is one pass."""

    @property
    def most_bytes(self) -> float:
        """What an id takes at most."""
        return 16 * self.growth / self.load


ROOMY, DENSE = Fullness(0.7, 1.4), Fullness(0.92, 1.085)
"""Where an id is looked for in one cache line, and in two on average, which takes twice as long."""
OVERHEAD = 0.3
"""The share of a row's bytes that an id may take, if that can be had."""
ANYWAY = 25.0
"""Bytes that an id may take beside rows that are shorter than it in any case."""
MOST_GROWTH = 2.0
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

    def __init__(self, kernels: ModuleType, fullness: Fullness = ROOMY) -> None:
        self._kernels, self._fullness = kernels, fullness
        self.size = 0
        self._allocate(SMALLEST)

    def _allocate(self, places: int) -> None:
        self._places = _whole_lines(places)
        self._arena = Arena(2, np.int64, self._places + SLACK)
        self._pairs: Ids = self._view()
        self._pairs[1::2] = -1

    def _view(self) -> Ids:
        pairs: Ids = self._arena.array[: self._places + SLACK].reshape(-1)
        return pairs

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        return int(self._pairs.nbytes)

    def find(self, ids: Ids, keep: int = -1, stamp: int = 0) -> tuple[Ids, int]:
        """The row of each id, -1 where there is none, and how many have none."""
        slots = np.empty(len(ids), np.int64)
        missing: int = self._kernels.find(self._pairs, self._places, ids, slots, keep, stamp)
        return slots, missing

    def meet(self, ids: Ids, keep: int, stamp: int, word: int, pool: SlotPool) -> tuple[Ids, Ids]:
        """The row of each id, and the places of those that had none: they got one of the pool.

        Args:
            ids: any ids, also some that come twice.
            keep: the bits of a found word that stay.
            stamp: the bits that are set in it.
            word: the stamps of those that are new.
            pool: rows for them.
        """
        slots, new = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
        done = count = 0
        while True:
            room = max(int(self._places * self._fullness.load) - self.size, 0)
            known = ids[done:], slots[done:], keep, stamp
            unknown = word, *pool.offer(), room, new[count:]
            step, added = self._kernels.meet(self._pairs, self._places, *known, *unknown)
            pool.hand_out(added)
            self.size += added
            new[count : count + added] += done
            done, count = done + step, count + added
            if done == len(ids):
                return slots, new[:count]
            self._grow()

    def reserve(self, ids: int) -> None:
        """Make room for so many ids at once.

        Needed before ids come in the order of their hashes: an index that is still small would be
        overfull in one place and empty in all others.
        """
        places = int(ids / self._fullness.load) + 1
        if places > self._places:
            self._expand(places)

    def insert(self, ids: Ids, words: Ids) -> None:
        """Add ids, all different and none of them known."""
        while self.size + len(ids) > self._places * self._fullness.load:
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
        self._expand(int(self._places * self._fullness.growth) + 1)

    def _expand(self, places: int) -> None:
        """Have so many places, in the same memory and by one pass through it."""
        old, self._places = self._places, _whole_lines(places)
        before = old + SLACK
        self._pairs = np.empty(0, np.int64)  # memory with a view does not grow
        self._arena.reserve(self._places + SLACK)
        self._pairs = self._view()
        self._pairs[2 * before + 1 :: 2] = -1
        ids, words = self._kernels.expand(self._pairs, before, old, self._places)
        self._rest(ids, words, len(ids))

    def words(self) -> tuple[Ids, Ids]:
        """All ids and their words, as copies."""
        live = self._pairs[1::2] >= 0
        return self._pairs[0::2][live], self._pairs[1::2][live]

    def replace(self, ids: Ids, words: Ids) -> None:
        """Hold these ids and no others."""
        self.size = 0
        self._allocate(max(SMALLEST, int(len(ids) / self._fullness.load) + 1))
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

    def remove(self, ids: Ids) -> None:
        """Forget some ids, all of them known and each once."""
        self._kernels.remove(self._pairs, self._places, ids)
        self.size -= len(ids)

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


def fullness_for(row_bytes: int) -> Fullness:
    """As roomy, and then in as large steps, as an index may be beside such rows."""
    least = DENSE.most_bytes
    allowed = ANYWAY if row_bytes < least else max(row_bytes * OVERHEAD, least)
    # Between the two, a place that is free helps a search as much as a large step helps growing.
    share = (allowed - least) / (ROOMY.most_bytes - least)
    load = DENSE.load + min(share, 1.0) * (ROOMY.load - DENSE.load)
    return Fullness(load, min(allowed * load / 16, MOST_GROWTH))


def _whole_lines(places: int) -> int:
    return -(-places // PLACES) * PLACES


def rows_of(words: Ids) -> Ids:
    """The rows that the words speak of."""
    return words & SLOT


def stamped(rows: Array, day: int, mark: int) -> Ids:
    """Words for rows that were met on this day and changed after this save."""
    return rows.astype(np.int64) | (day << DAY_SHIFT) | (mark << MARK_SHIFT)

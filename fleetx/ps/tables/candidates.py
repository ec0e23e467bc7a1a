"""Ids that were met but not admitted yet: a few bytes each instead of a row."""

from collections.abc import Callable
from types import ModuleType

import numpy as np

from fleetx.ps.tables.arena import Arena
from fleetx.ps.tables.entries import Entry, ShowClickEntry
from fleetx.ps.tables.index import DAY, DAY_SHIFT, Index, rows_of, stamped
from fleetx.ps.tables.slot_pool import SlotPool
from fleetx.ps.wire.arrays import Array, Ids

ADMITTED = -1
"""The count of an id that has a row by now; it goes when the others are gone through."""


class Candidates:
    """Counts how often ids were met."""

    def __init__(self, kernels: ModuleType) -> None:
        self._kernels = kernels
        self._index = Index(kernels)
        self._counts, self._slots = Arena(1, np.int64), SlotPool()
        self._admitted = 0

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        return self._index.nbytes + 8 * self._slots.used

    def meet(self, ids: Ids, times: Array, entry: Entry, day: int) -> Ids:
        """Count these ids; returns those that are let in now, each once."""
        assert not isinstance(entry, ShowClickEntry), "which lets everybody in"
        once, _, place = self._kernels.dedupe(ids, 1)
        met = np.bincount(place, weights=times, minlength=len(once)).astype(np.int64)
        slots = self._slots_of(once, day)
        counts = self._counts.array[:, 0]
        # One that was let in and dropped again begins anew.
        met += np.maximum(counts[slots], 0)
        inside = entry.admits(once, met)
        counts[slots] = np.where(inside, ADMITTED, met)
        self._admitted += int(inside.sum())
        if self._admitted > self._index.size // 2:
            self._forget(0, 0, lambda words: self._counts.array[rows_of(words), 0] == ADMITTED)
        admitted: Ids = once[inside]
        return admitted

    def _slots_of(self, ids: Ids, day: int) -> Ids:
        slots, missing = self._index.find(ids, ~DAY, day << DAY_SHIFT)
        if missing:
            new, _ = self._slots.take(missing)
            self._counts.reserve(self._slots.used)
            self._counts.array[new, 0] = 0
            self._index.insert(ids[slots < 0], stamped(new, day, 0))
            slots[slots < 0] = new
        return slots

    def _forget(self, number: int, bits: int, which: Callable[[Ids], Array]) -> None:
        """Let go of some of the ids in a part of the hash range."""
        _, words = self._index.part(number, bits)
        gone = which(words)
        slots = rows_of(words[gone])
        self._admitted -= int(np.count_nonzero(self._counts.array[slots, 0] == ADMITTED))
        self._slots.give_back(slots)
        self._index.prune(number, bits, gone)

    def shrink(self, ended: int, threshold: int, number: int, bits: int) -> None:
        """Forget those of a part that were not met for so many days, of which this is the last."""
        self._forget(number, bits, lambda words: ended - ((words & DAY) >> DAY_SHIFT) >= threshold)

    def __len__(self) -> int:
        return self._index.size

    def part(self, number: int, bits: int) -> tuple[Ids, Ids, Ids]:
        """Ids that wait, in one part of the hash range, how often they were met, and when last."""
        ids, words = self._index.part(number, bits)
        found = self._counts.array[rows_of(words), 0]
        waiting = found != ADMITTED
        days = (words & DAY) >> DAY_SHIFT
        return ids[waiting], found[waiting], days[waiting]

    def put(self, ids: Ids, counts: Ids, days: Ids) -> None:
        """Take what ``part`` gave, here or on another server."""
        for day in np.unique(days):
            chosen = days == day
            self._counts.array[self._slots_of(ids[chosen], int(day)), 0] = counts[chosen]

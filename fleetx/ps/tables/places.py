"""Where records are, by the hashes of their ids: some six bytes of memory for each."""

from collections.abc import Callable
from types import ModuleType

import numpy as np

from fleetx.ps.tables.arena import Arena
from fleetx.ps.tables.kernels.numpy_places import FREE, HELD, OVER, SLACK, WIDE, lines_of
from fleetx.ps.wire.arrays import Array, Ids

LOAD = 0.86
"""The share of places that may be taken."""
STEP = 1.15
"""By how much there are more then."""
LEAP = 1.5
"""By how much if one end of the hash range is full before the rest, as of a save that is loaded."""
SMALLEST = 64
"""Lines of an index that is empty."""

PutIn = Callable[["Places", Array], bool]
"""Adds all records whose places are marked to an empty index; returns whether it had room."""


class Places:
    """An index of records that are elsewhere; ``numpy_places`` says what it looks like.

    It knows no ids. Before there are more lines, a bit for each place notes which of them are
    taken, and whoever keeps the records adds those again.
    """

    def __init__(self, kernels: ModuleType) -> None:
        self._kernels = kernels
        self.size = 0
        """How many there are."""
        self._allocate(SMALLEST)

    def _allocate(self, homes: int) -> None:
        self.homes = homes
        """The lines in which searches begin."""
        self._arena = Arena(WIDE, np.uint32, homes + SLACK)
        whole = self._arena.array[: homes + SLACK]
        whole[:, :HELD] = FREE
        self.lines: Array = whole.reshape(-1)

    @property
    def nbytes(self) -> int:
        """Memory in use."""
        return int(self.lines.nbytes)

    def reserve(self, more: int, end: int, put_in: PutIn) -> None:
        """Have room for so many more.

        Args:
            more: how many.
            end: is behind all places that are taken.
            put_in: adds those again if there are other lines.
        """
        lines = int((self.size + more) / (HELD * LOAD)) + 1
        if lines > self.homes:
            self._expand(max(lines, int(self.homes * STEP)), end, put_in)

    def _expand(self, homes: int, end: int, put_in: PutIn) -> None:
        marks = np.zeros(-(-end // 8), np.uint8)
        self._kernels.mark_places(self.lines, marks)
        while True:
            self._free()  # before there are others
            self._allocate(homes)
            if put_in(self, marks):
                return
            homes = int(homes * LEAP)

    def _free(self) -> None:
        self.lines = np.empty(0, np.uint32)
        self._arena = Arena(WIDE, np.uint32)

    def keep(self, ids: Ids, first: int, end: int, put_in: PutIn) -> None:
        """Add ids that are not here, whose places are one behind the other from the first on."""
        self.reserve(len(ids), end, put_in)
        done = 0
        while done < len(ids):
            rest = ids[done:], first + done
            done += self._kernels.keep_places(self.lines, self.homes, *rest)
            if done < len(ids):
                self._expand(int(self.homes * LEAP), end, put_in)
        self.size += len(ids)

    def keep_marked(self, ids: Ids, first: int, marks: Array) -> bool:
        """The same for those whose places are marked, for ``put_in``; whether there was room."""
        fitted: bool = self._kernels.keep_marked(self.lines, self.homes, ids, first, marks)
        return fitted

    def forget(self, ids: Ids, places: Ids, live: Ids, shift: int) -> None:
        """Forget ids, which have these places; each segment counts those that are left."""
        self._kernels.forget_places(self.lines, self.homes, ids, places, live, shift)
        self.size -= len(ids)

    def part(self, number: int, bits: int) -> Ids:
        """The places of all records in one of ``2**bits`` equal parts of the hash range, in order.

        There are few others among them.
        """
        lines, shift = self.lines.reshape(-1, WIDE), np.uint64(64 - bits)
        begin, end = 0, self.homes
        if number:
            begin = int(lines_of(np.array([number], np.uint64) << shift, self.homes)[0])
        if number + 1 < 1 << bits:
            end = int(lines_of(np.array([number + 1], np.uint64) << shift, self.homes)[0]) + 1
        while lines[end - 1, OVER]:
            end += 1
        held = lines[begin:end, :HELD]
        return np.sort(held[held != FREE]).astype(np.int64)

"""Numbers of rows, given out and taken back."""

import numpy as np

from fleetx.ps.tables.arena import Arena
from fleetx.ps.wire.arrays import Ids


class SlotPool:
    """Gives out the numbers that were taken back before new ones."""

    def __init__(self) -> None:
        self.used = 0
        """How many different numbers were given out so far."""
        self._stack = Arena(1, np.int64)  # grows without being copied: a push may wait for it
        self._free = 0
        """How many numbers of the stack nobody has: the first ones."""

    def take(self, count: int) -> tuple[Ids, int]:
        """So many numbers that nobody has, and how many of the first ones somebody had before."""
        free, used = self.offer()
        again = free[len(free) - min(count, len(free)) :][::-1]
        slots = np.concatenate([again, np.arange(used, used + count - len(again))])
        return slots, self.hand_out(count)

    def offer(self) -> tuple[Ids, int]:
        """What would be given out: these numbers from the last one on, then all from another on."""
        return self._stack.array[: self._free, 0], self.used

    def hand_out(self, count: int) -> int:
        """So many of them are given out; returns how many somebody had before."""
        again = min(count, self._free)
        self._free -= again
        self.used += count - again
        return again

    def give_back(self, slots: Ids) -> None:
        """These are not needed any more."""
        end = self._free + len(slots)
        self._stack.reserve(end)
        self._stack.array[self._free : end, 0] = slots
        self._free = end

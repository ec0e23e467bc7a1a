"""Numbers of rows, given out and taken back."""

import numpy as np

from fleetx.ps.wire.arrays import Ids


class SlotPool:
    """Gives out the numbers that were taken back before new ones."""

    def __init__(self) -> None:
        self.used = 0
        """How many different numbers were given out so far."""
        self._free: list[Ids] = []

    def take(self, count: int) -> tuple[Ids, int]:
        """So many numbers that nobody has, and how many of the first ones somebody had before."""
        found: list[Ids] = []
        missing = count
        while missing and self._free:
            last = self._free.pop()
            if len(last) > missing:
                self._free.append(last[missing:])
                last = last[:missing]
            found.append(last)
            missing -= len(last)
        found.append(np.arange(self.used, self.used + missing))
        self.used += missing
        return np.concatenate(found), count - missing

    def give_back(self, slots: Ids) -> None:
        """These are not needed any more."""
        if len(slots):
            self._free.append(slots)

"""What is known of each segment of records."""

import numpy as np

from fleetx.ps.wire.arrays import Array, Ids, Words


class SegmentList:
    """Numbers of segments are given out and taken back."""

    def __init__(self) -> None:
        self.addresses: Ids = np.zeros(0, np.int64)
        """Where the records of each begin."""
        self.live: Ids = np.zeros(0, np.int64)
        """How many of them are in the index."""
        self.sealed: Array = np.zeros(0, bool)
        """Whether it is in the file."""
        self.hashes: Words = np.zeros(0, np.uint64)
        """The hash of the first id of each, which tells whose neighbours the others are."""
        self._free = list[int]()

    @property
    def used(self) -> int:
        """Segments that exist."""
        return len(self) - len(self._free)

    def __len__(self) -> int:
        return len(self.live)

    def take(self, address: int) -> int:
        """A number for a new segment, which is in memory."""
        if not self._free:
            self._grow(max(2 * len(self), 64))
        number = self._free.pop()
        self.addresses[number] = address
        return number

    def _grow(self, count: int) -> None:
        self._free += range(count - 1, len(self) - 1, -1)
        for name in ("addresses", "live", "sealed", "hashes"):
            before = getattr(self, name)
            setattr(
                self, name, np.concatenate([before, np.zeros(count - len(before), before.dtype)])
            )

    def seal(self, number: int, address: int, first: int) -> None:
        """It is in the file now, at this address; ``first`` is the hash of its first id."""
        self.addresses[number], self.hashes[number] = address, first
        self.sealed[number] = True

    def give_back(self, numbers: list[int]) -> None:
        """These are not in the file any more."""
        self._free += numbers

    def emptiest(self, first: int, last: int) -> int:
        """The one of which the least is alive, of those in the file with such a hash, or -1."""
        near = self.sealed & (self.hashes >= first) & (self.hashes <= last)
        if not near.any():
            return -1
        return int(np.where(near, self.live, np.iinfo(np.int64).max).argmin())

"""How often each score came up, exactly as long as there are not too many different ones."""

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.int64]
Counts = NDArray[np.int64]
"""Positive examples in the first row, negative ones in the second, as many as there are keys."""

_BATCHES = 4096
"""How many batches may wait; small ones weigh more than their scores."""


class Tally:
    """Counts of scores from 0 up, in ascending order.

    A score is known by the bits of its float64, which are in the order of the numbers. Where there
    are more than ``limit`` different ones, their last bits are left off, as few as will do: scores
    are then told apart if they differ by more than a fraction of themselves, however small they
    are.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._dropped = limit, 0
        self._keys: Keys = np.zeros(0, np.int64)
        self._counts: Counts = np.zeros((2, 0), np.int64)
        self._waiting: list[tuple[Keys, Counts]] = []
        self._pending = 0
        """How many scores wait to be put in order."""

    @property
    def counts(self) -> Counts:
        """Of the scores in their order."""
        self._settle()
        return self._counts

    def __len__(self) -> int:
        """How many scores are told apart."""
        self._settle()
        return len(self._keys)

    def add(self, scores: NDArray[np.float64], is_positive: NDArray[np.bool_]) -> None:
        """Count some more."""
        bits = (scores + 0.0).view(np.int64)  # 0.0 and -0.0 are the same number
        self._waiting.append((bits >> self._dropped, np.stack([is_positive, ~is_positive]) * 1))
        self._pending += len(bits)
        # Seldom, since all that is there is gone through each time.
        if self._pending > self._limit or len(self._waiting) > _BATCHES:
            self._settle()

    def packed(self, limit: int) -> Counts:
        """At most so many scores as one array, for another worker; the first column tells how."""
        copy = Tally(min(limit, self._limit))
        self._settle()
        copy._take(self._dropped, self._keys, self._counts)
        copy._settle()
        head = np.array([[copy._dropped], [0], [0]], np.int64)
        return np.concatenate([head, np.concatenate([copy._keys[None], copy._counts])], axis=1)

    def add_packed(self, packed: Counts) -> None:
        """Count what another worker has counted."""
        self._settle()
        self._take(int(packed[0, 0]), packed[0, 1:], packed[1:, 1:])

    def _take(self, dropped: int, keys: Keys, counts: Counts) -> None:
        self._drop(dropped)
        self._waiting.append((keys >> (self._dropped - dropped), counts))

    def _settle(self) -> None:
        if not self._waiting:
            return
        found = [(self._keys, self._counts), *self._waiting]
        self._waiting, self._pending = [], 0
        self._join(
            np.concatenate([keys for keys, _ in found]),
            np.concatenate([counts for _, counts in found], axis=1),
        )
        while len(self._keys) > self._limit:
            self._drop(self._dropped + 1)

    def _drop(self, bits: int) -> None:
        if bits > self._dropped:
            shifted = self._keys >> (bits - self._dropped)
            self._dropped = bits
            self._join(shifted, self._counts)

    def _join(self, keys: Keys, counts: Counts) -> None:
        """Add up what has the same key."""
        order = np.argsort(keys, kind="stable")
        keys, counts = keys[order], counts[:, order]
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        self._keys = keys[starts]
        self._counts = np.add.reduceat(counts, starts, axis=1) if len(starts) else counts[:, :0]

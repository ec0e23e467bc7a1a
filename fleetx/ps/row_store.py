"""The rows of a table in memory: weights, the rule's state, and counts, found by number."""

from dataclasses import dataclass

import numpy as np

from fleetx.ps.arena import Arena
from fleetx.ps.hashing import Array, Floats, Ids
from fleetx.ps.rules import Rule


@dataclass(frozen=True)
class Rows:
    """Some rows of a table with everything that belongs to them."""

    ids: Ids
    weights: Floats
    state: Floats
    stats: Floats
    """Shows and clicks, where the table counts them."""
    days: Array
    """On which day each was last met."""

    def __len__(self) -> int:
        return len(self.ids)


class RowStore:
    """Numbers of rows are given out and taken back."""

    def __init__(self, dim: int, rule: Rule, *, counted: bool) -> None:
        self._rule = rule
        self.weights = Arena(dim, np.float32)
        self.state = Arena(rule.state_width(dim), np.float32)
        self.stats = Arena(2 if counted else 0, np.float32)
        """Shows and clicks, where they are counted."""
        self._used, self._free = 0, np.empty(0, np.int64)

    @property
    def arenas(self) -> tuple[Arena, Arena, Arena]:
        """All that belongs to a row."""
        return self.weights, self.state, self.stats

    @property
    def nbytes(self) -> int:
        """Memory of the rows that exist or did."""
        return self._used * sum(4 * int(arena.array.shape[1]) for arena in self.arenas)

    def take(self, count: int) -> Ids:
        """Unused rows, dropped ones first; all but their weights is as at the beginning."""
        old = self._free[: min(count, len(self._free))]
        self._free = self._free[len(old) :]
        fresh = np.arange(self._used, self._used + count - len(old))
        self._used += len(fresh)
        for arena in self.arenas:
            arena.reserve(self._used)
        slots = np.concatenate([old, fresh])
        state = np.empty((count, self.state.array.shape[1]), np.float32)
        self._rule.start(state)
        self.state.array[slots] = state
        self.stats.array[slots] = 0
        return slots

    def give_back(self, slots: Ids) -> None:
        """These rows are not needed any more."""
        self._free = np.concatenate([self._free, slots])

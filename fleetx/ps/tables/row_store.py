"""The rows of a table in memory: weights, the rule's state, and counts, found by number."""

from dataclasses import dataclass

import numpy as np

from fleetx.ps.tables.arena import Arena
from fleetx.ps.tables.rules import Rule, Tables
from fleetx.ps.tables.slot_pool import SlotPool
from fleetx.ps.wire.arrays import Array, Floats, Ids

LINE = 16
"""Floats in a cache line."""


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


@dataclass(frozen=True)
class Column:
    """Neighbouring numbers of each row of an arena, which may hold other columns as well."""

    arena: Arena
    begin: int
    width: int

    @property
    def array(self) -> Array:
        """The numbers themselves."""
        return self.arena.array[:, self.begin : self.begin + self.width]


class RowStore:
    """Numbers of rows are given out and taken back."""

    def __init__(self, dim: int, rule: Rule, *, counted: bool) -> None:
        self._rule = rule
        kept = rule.state_width(dim)
        if _fills_lines(dim + kept):
            shared = Arena(dim + kept, np.float32)
            self.weights, self.state = Column(shared, 0, dim), Column(shared, dim, kept)
        else:
            self.weights = Column(Arena(dim, np.float32), 0, dim)
            self.state = Column(Arena(kept, np.float32), 0, kept)
        self.stats = Column(Arena(2 if counted else 0, np.float32), 0, 2 if counted else 0)
        """Shows and clicks, where they are counted."""
        self._slots = SlotPool()

    @property
    def columns(self) -> tuple[Column, Column, Column]:
        """All that belongs to a row."""
        return self.weights, self.state, self.stats

    @property
    def tables(self) -> Tables:
        """What a rule works on: rows that begin with weights, rows with state, where it begins."""
        return self.weights.arena.array, self.state.arena.array, self.state.begin

    @property
    def capacity(self) -> int:
        """How many rows there is memory for."""
        return self.weights.arena.rows

    @property
    def used(self) -> int:
        """Rows that exist or did."""
        return self._slots.used

    @property
    def nbytes(self) -> int:
        """Memory of the rows that exist or did."""
        return self.used * sum(4 * column.width for column in self.columns)

    def take(self, count: int) -> Ids:
        """Unused rows, dropped ones first; all but their weights is as at the beginning."""
        slots = self._slots.take(count)
        for column in self.columns:
            column.arena.reserve(self.used)
        state = np.empty((count, self.state.width), np.float32)
        self._rule.start(state)
        self.state.array[slots] = state
        self.stats.array[slots] = 0
        return slots

    def give_back(self, slots: Ids) -> None:
        """These rows are not needed any more."""
        self._slots.give_back(slots)


def _fills_lines(width: int) -> bool:
    """Whether rows of so many floats take whole cache lines.

    Then weights and state are neighbours: memory gives both as fast as one. In two places they may
    be in the way of each other, which depends on where the system finds memory, and took twice as
    long in one process of three.
    """
    return width % LINE == 0

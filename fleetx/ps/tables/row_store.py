"""The rows of a table in memory: weights, the rule's state, and counts, found by number."""

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import NamedTuple

import numpy as np

from fleetx.ps.tables.arena import Arena
from fleetx.ps.tables.initializers import Initializer
from fleetx.ps.tables.rules import Rule, Tables
from fleetx.ps.tables.slot_pool import SlotPool
from fleetx.ps.wire.arrays import Array, Floats, Ids

LINE = 16
"""Floats in a cache line."""
NEAR_BYTES = 1 << 18
"""Rows that are read right after they were written: they are in a near cache then."""


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

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Of its numbers."""
        return self.arena.array.dtype

    @property
    def bytes(self) -> Array:
        """The rows of the arena as bytes."""
        return _bytes(self.arena.array)

    @property
    def first_byte(self) -> int:
        """Where it begins in such a row."""
        return self.begin * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """What it takes of a row."""
        return self.width * self.dtype.itemsize


class Drawn(NamedTuple):
    """What chance follows from, when a change is rounded: the ids of its rows and its number."""

    ids: Ids
    update: int


class RowStore:
    """Numbers of rows are given out and taken back."""

    def __init__(self, dim: int, rule: Rule, *, counted: bool) -> None:
        self._rule = rule
        self.weights, self.state = self._laid_out(dim, rule.state_width(dim))
        self.stats = Column(Arena(2 if counted else 0, np.float32), 0, 2 if counted else 0)
        """Shows and clicks, where they are counted."""
        self.slots = SlotPool()
        """Numbers for new rows; whoever takes some elsewhere calls ``clean``."""

    def _laid_out(self, dim: int, kept: int) -> tuple[Column, Column]:
        """Where weights and state are."""
        if _fills_lines(dim + kept):
            shared = Arena(dim + kept, np.float32)
            return Column(shared, 0, dim), Column(shared, dim, kept)
        return Column(Arena(dim, np.float32), 0, dim), Column(Arena(kept, np.float32), 0, kept)

    @property
    def columns(self) -> dict[str, Column]:
        """All that belongs to a row."""
        return {"weights": self.weights, "state": self.state, "stats": self.stats}

    @property
    def tables(self) -> Tables:
        """What a rule works on: rows that begin with weights, rows with state, where it begins."""
        return self.weights.arena.array, self.state.arena.array, self.state.begin

    def gather(self, kernels: ModuleType, slots: Ids, out: Floats) -> None:
        """Copy weights to ``out``; for -1 there is some row, which ``clear`` wipes."""
        kernels.gather(self.weights.arena.array, slots, out)

    def weights_of(self, slots: Ids) -> Floats:
        """Copies of weights."""
        copies: Floats = self.weights.array[slots]
        return copies

    def set_weights(self, slots: Ids, weights: Floats) -> None:
        """Write weights."""
        self.weights.array[slots] = weights

    def apply(
        self, kernels: ModuleType, slots: Ids, gradients: Floats, rate: float, drawn: Drawn
    ) -> None:
        """Move rows that are all different by the rule; ``drawn`` is for those that round."""
        self._rule.apply(kernels, self.tables, slots, gradients, rate)

    def add(self, kernels: ModuleType, slots: Ids, delta: Floats, drawn: Drawn) -> None:
        """``w += delta`` for rows that are all different."""
        kernels.add(self.weights.arena.array, slots, delta)

    @cached_property
    def record(self) -> np.dtype[np.void]:
        """All of a row in one piece, with its id and its stamps, as it is kept elsewhere."""
        columns = [(name, column.dtype, (column.width,)) for name, column in self.columns.items()]
        packed = np.dtype([("id", np.int64), ("stamps", np.int64), *columns])
        # Whole words of eight bytes, one of which is the id.
        padding = ("padding", np.uint8, (-packed.itemsize % 8,))
        return np.dtype([("id", np.int64), ("stamps", np.int64), *columns, padding])

    def fill_records(self, kernels: ModuleType, slots: Ids, records: Array) -> None:
        """Write rows, without their ids and stamps, to records."""
        for column, at in self._in_records():
            place = column.bytes, column.first_byte, slots, _bytes(records), at, column.row_bytes
            kernels.copy_out(*place)

    def take_records(self, kernels: ModuleType, records: Array) -> Ids:
        """Give unused rows to records; returns their numbers."""
        slots, _ = self.slots.take(len(records))
        self._grow()
        for column, at in self._in_records():
            place = column.bytes, column.first_byte, slots, _bytes(records), at, column.row_bytes
            kernels.copy_in(*place)
        return slots

    def _in_records(self) -> list[tuple[Column, int]]:
        """All that belongs to a row, and at which byte of a record it begins."""
        fields = self.record.fields
        assert fields is not None
        return [(each, fields[name][1]) for name, each in self.columns.items() if each.width]

    def put_weights(self, records: Array, weights: Floats) -> None:
        """Write weights to records."""
        records["weights"] = weights

    def weights_in(self, records: Array) -> Floats:
        """The weights of records."""
        weights: Floats = records["weights"]
        return weights

    def state_in(self, records: Array) -> Floats:
        """The state of records."""
        state: Floats = records["state"]
        return state

    def stats_in(self, records: Array) -> Floats:
        """The shows and clicks of records; a view."""
        stats: Floats = records["stats"]
        return stats

    @property
    def capacity(self) -> int:
        """How many rows there is memory for."""
        return self.weights.arena.rows

    @property
    def used(self) -> int:
        """Rows that exist or did."""
        return self.slots.used

    @property
    def nbytes(self) -> int:
        """Memory of the rows that exist or did."""
        return self.used * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Memory of one row."""
        return sum(column.row_bytes for column in self.columns.values())

    def take(self, count: int) -> Ids:
        """Unused rows, dropped ones first; all but their weights is as at the beginning."""
        slots, reused = self.slots.take(count)
        self.clean(slots, reused)
        return slots

    def clean(self, slots: Ids, reused: int) -> None:
        """Let all but the weights of new rows be as at the beginning; the first were used."""
        self._grow()
        # Memory that nobody had is zero. To write it again would cost as much as to use it.
        first = self._rule.first_state
        begin = slots[:reused] if first == 0 else slots
        self.state.array[begin] = first
        if reused:
            self.stats.array[slots[:reused]] = 0

    def _grow(self) -> None:
        """Have memory for all rows that were given out."""
        for column in self.columns.values():
            column.arena.reserve(self.used)

    def begin(
        self, kernels: ModuleType, slots: Ids, ids: Ids, first: Initializer, seed: int
    ) -> None:
        """Let rows begin with what their ids say."""
        first.fill(kernels, self.weights.arena.array, slots, ids, self.weights.width, seed)

    def begin_shown(  # noqa: PLR0917
        self, kernels: ModuleType, slots: Ids, ids: Ids, first: Initializer, seed: int, out: Floats
    ) -> None:
        """The same, and copy them to ``out``."""
        step = max(NEAR_BYTES // self.row_bytes, 1)
        for at in range(0, len(slots), step):
            piece = slice(at, at + step)
            self.begin(kernels, slots[piece], ids[piece], first, seed)
            self.gather(kernels, slots[piece], out[piece])

    def give_back(self, slots: Ids) -> None:
        """These rows are not needed any more."""
        self.slots.give_back(slots)


def _bytes(rows: Array) -> Array:
    """The same memory, a row of bytes for each."""
    found: Array = rows.reshape(-1).view(np.uint8).reshape(len(rows), -1)
    return found


def _fills_lines(width: int) -> bool:
    """Whether rows of so many floats take whole cache lines.

    Then weights and state are neighbours: memory gives both as fast as one. In two places they may
    be in the way of each other, which depends on where the system finds memory, and took twice as
    long in one process of three.
    """
    return width % LINE == 0

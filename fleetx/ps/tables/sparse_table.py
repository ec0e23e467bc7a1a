"""A sparse table: rows for ids, made when an id is first met."""

import threading
from types import ModuleType
from typing import Any

import numpy as np

from fleetx.ps.tables import kernels
from fleetx.ps.tables.candidates import Candidates
from fleetx.ps.tables.entries import ShowClickEntry
from fleetx.ps.tables.hashing import among
from fleetx.ps.tables.index import (
    DAY,
    DAY_SHIFT,
    MARK,
    MARK_SHIFT,
    ROOMY,
    Index,
    fullness_for,
    rows_of,
)
from fleetx.ps.tables.quantised_rows import QuantisedRows
from fleetx.ps.tables.row_store import Drawn, Rows, RowStore
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.arrays import Array, Floats, Ids

LAST_DAY = 1 << 13
LAST_MARK = 1 << 16
ONE_SHOW: Floats = np.array([1, 0], np.float32)
"""What is counted for an id that came without shows and clicks."""


class SparseTable:
    """Weights, the rule's state, and the index that finds both. ``lock`` guards every call."""

    def __init__(self, spec: SparseSpec, engine: ModuleType | None = None) -> None:
        self.spec, self.lock = spec, threading.RLock()
        self._kernels = engine or kernels.active
        self._counted = isinstance(spec.entry, ShowClickEntry)
        self._rows = self._no_rows()
        self._index = self._no_ids()
        filtered = spec.entry is not None and not self._counted
        self._candidates = Candidates(self._kernels) if filtered else None
        self.updates = 0
        """Updates so far; the version of the table."""
        self.day, self.mark = 0, 1
        self.era = 0
        """Marks are compared within an era; they begin anew with the next one."""

    def _no_rows(self) -> RowStore:
        spec, counted = self.spec, self._counted
        if spec.dtype == "float32":
            return RowStore(spec.dim, spec.rule, counted=counted)
        return QuantisedRows(spec.dim, spec.rule, counted=counted, dtype=spec.dtype)

    def _no_ids(self) -> Index:
        dense = self._kernels.BEARS_DENSE
        return Index(self._kernels, fullness_for(self._rows.row_bytes) if dense else ROOMY)

    def __len__(self) -> int:
        return self._index.size

    @property
    def nbytes(self) -> int:
        """Memory of the rows that exist, and of the index."""
        waiting = self._candidates.nbytes if self._candidates else 0
        return self._rows.nbytes + self._index.nbytes + waiting

    def pull(self, ids: Ids, out: Floats, met: Array | None = None, *, train: bool) -> Ids | None:
        """Write the rows of the ids to ``out``.

        Args:
            ids: any ids, in any order.
            out: one row for each of them.
            met: how often each id occurred, 1 if not said; for tables that admit by it.
            train: make rows that do not exist yet; else show what they would begin with.

        Returns:
            The ids that were admitted by an entry, which a log must remember.
        """
        if train and self._candidates is None:
            self._pull_or_make(ids, out)
            return None
        admitted = None
        if train:
            slots, missing = self._found(ids, ~DAY, self.day << DAY_SHIFT)
            if missing:
                admitted = self._admit_some(ids, slots, met)
            self._note_use(slots)
        else:
            slots, missing = self._index.find(ids)
        self._rows.gather(self._kernels, slots, out)
        if missing:
            self._kernels.clear(slots, out)
        if missing and not train:
            self._show_unknown(ids, slots, out)
        return admitted

    def _pull_or_make(self, ids: Ids, out: Floats) -> None:
        slots, new = self._met(ids, ~DAY, self.day << DAY_SHIFT)
        self._note_use(slots)
        first = self.spec.initializer, self.spec.seed
        if len(new) == len(ids):
            self._rows.begin_shown(self._kernels, slots, ids, *first, out)
        else:
            self._begin(ids, slots, new)
            self._rows.gather(self._kernels, slots, out)

    def prepare(self, ids: Ids) -> None:
        """Have room for what is about to happen to these ids; changes nothing that anybody sees.

        Raises:
            NoRoomError: if there is none. What happens afterwards does not raise it.
        """

    def _found(self, ids: Ids, keep: int = -1, stamp: int = 0) -> tuple[Ids, int]:
        """The slots of ids that are to be changed, and how many have none."""
        return self._index.find(ids, keep, stamp)

    def _met(self, ids: Ids, keep: int = -1, stamp: int = 0) -> tuple[Ids, Ids]:
        """The slots of ids, and the places of those that had none: their weights are to be written.

        Those that come twice are new where they come first.
        """
        word = (self.day << DAY_SHIFT) | (self.mark << MARK_SHIFT)
        free = len(self._rows.slots.offer()[0])
        slots, new = self._index.meet(ids, keep, stamp, word, self._rows.slots)
        if len(new):
            self._rows.clean(slots[new], min(free, len(new)))
        return slots, new

    def _begin(self, ids: Ids, slots: Ids, new: Ids) -> None:
        """Write the weights of those that are new."""
        if len(new):
            first = self.spec.initializer, self.spec.seed
            self._rows.begin(self._kernels, slots[new], ids[new], *first)

    def _note_use(self, slots: Ids) -> None:
        """Rows were asked for, to be trained."""

    def _show_unknown(self, ids: Ids, slots: Ids, out: Floats) -> None:
        """Write what those without a slot would begin with."""
        if self._candidates is None:
            unknown = slots < 0
            out[unknown] = self._first(ids[unknown])

    def _first(self, ids: Ids) -> Floats:
        return self.spec.initializer.rows(ids, self.spec.dim, self.spec.seed)

    def _admit_some(self, ids: Ids, slots: Ids, met: Array | None) -> Ids:
        """Give rows to unknown ids that are admitted, and fill in their slots."""
        unknown = np.flatnonzero(slots < 0)
        times = np.ones(len(unknown), np.int64) if met is None else met[unknown]
        assert self._candidates is not None
        assert self.spec.entry is not None
        new = self._candidates.meet(ids[unknown], times, self.spec.entry, self.day)
        self.admit(new)
        slots[unknown], _ = self._index.find(ids[unknown])
        return new

    def admit(self, ids: Ids) -> None:
        """Make rows for those of the ids that have none, whatever the entry says."""
        slots, new = self._met(ids)
        self._begin(ids, slots, new)

    def give(self, ids: Ids, weights: Floats) -> Ids:
        """Make rows with these weights for those of the ids that have none; returns whose.

        Whatever the entry says, and no update: nothing of what was learned is changed.
        """
        slots, new = self._met(ids)
        self._rows.set_weights(slots[new], weights[new])
        return ids[new]

    def push(
        self,
        ids: Ids,
        gradients: Floats,
        rate: float | None = None,
        *,
        unique: bool = False,
        stats: Floats | None = None,
    ) -> None:
        """One update by the table's rule; gradients of an id that comes twice are added up.

        Args:
            ids: the rows to move.
            gradients: one for each of them.
            rate: the learning rate; the rule's own if not said.
            unique: the caller knows that no id comes twice.
            stats: shows and clicks of each id, one show if not said.
        """
        self.updates += 1
        if not unique:
            ids, gradients, stats = self.summed(ids, gradients, stats)
        slots = self._touch(ids)
        if self._candidates is not None:  # who has no row yet is not trained
            kept = slots >= 0
            ids, slots, gradients = ids[kept], slots[kept], np.ascontiguousarray(gradients[kept])
            stats = None if stats is None else stats[kept]
        base = self.spec.rule.lr if rate is None else rate
        rate = self.spec.pace.rate(base, self.updates - 1)
        self._rows.apply(self._kernels, slots, gradients, rate, Drawn(ids, self.updates))
        if self._counted:
            self._rows.stats.array[slots] += ONE_SHOW if stats is None else stats

    def add(self, ids: Ids, delta: Floats, *, unique: bool = False) -> None:
        """``w += delta``, for workers that train copies of their own."""
        self.updates += 1
        if not unique:
            ids, delta, _ = self.summed(ids, delta, None)
        slots = self._touch(ids)
        kept = slots >= 0
        drawn = Drawn(ids[kept], self.updates)
        self._rows.add(self._kernels, slots[kept], np.ascontiguousarray(delta[kept]), drawn)

    def _touch(self, ids: Ids) -> Ids:
        stamp = (self.day << DAY_SHIFT) | (self.mark << MARK_SHIFT)
        slots, missing = self._found(ids, ~(DAY | MARK), stamp)
        if not missing or self._candidates is not None:  # mostly a pull has made them before
            return slots
        slots, new = self._met(ids, ~(DAY | MARK), stamp)
        self._begin(ids, slots, new)
        return slots

    def summed(
        self, ids: Ids, gradients: Floats, stats: Floats | None
    ) -> tuple[Ids, Floats, Floats | None]:
        """Each id once, with the sums of what came with it."""
        once, _, place = self._kernels.dedupe(ids, 1)
        if len(once) == len(ids):
            return ids, gradients, stats
        totals = np.zeros((len(once), self.spec.dim), np.float32)
        self._kernels.sum_rows(np.ascontiguousarray(gradients), place, totals)
        if self._counted:
            each = np.tile(ONE_SHOW, (len(ids), 1)) if stats is None else stats
            stats = np.zeros((len(once), 2), np.float32)
            self._kernels.sum_rows(np.ascontiguousarray(each), place, stats)
        return once, totals, stats

    def shrink(self, threshold: int) -> Ids:
        """End a day at once: drop rows that were not met for so many days, or score too low."""
        self.begin_day(self.day + 1)
        gone = self.leaving(threshold)
        self.decay(self.ids())
        self.drop(gone)
        self.forget_waiting(threshold)
        return gone

    def leaving(self, threshold: int, number: int = 0, bits: int = 0) -> Ids:
        """The ids of a part that go with the day that ended before this one.

        Who was met since that end stays, whatever its score.
        """
        ids, words = self._index.part(number, bits)
        stats = self._rows.stats.array[rows_of(words)]
        leaving: Ids = ids[self._leaves(words, stats, threshold)]
        return leaving

    def _leaves(self, stamps: Ids, stats: Floats, threshold: int) -> Array:
        """Whether rows with these stamps and counts go."""
        last = (stamps & DAY) >> DAY_SHIFT
        gone: Array = self.day - 1 - last >= threshold
        if isinstance(self.spec.entry, ShowClickEntry):
            scores = self.spec.entry.scores(stats * np.float32(self.spec.entry.decay))
            gone |= (scores < self.spec.entry.lowest) & (last < self.day)
        return gone

    def forget_waiting(self, threshold: int, number: int = 0, bits: int = 0) -> None:
        """Forget ids of a part that wait for a row and were not met for so many days."""
        if self._candidates is not None:
            self._candidates.shrink(self.day - 1, threshold, number, bits)

    def begin_day(self, day: int) -> None:
        """Rows that are met from now on are met on this day."""
        self.day = day
        if self.day == LAST_DAY - 1:
            self._renumber()

    def decay(self, ids: Ids) -> None:
        """Let the counts of these rows fade, as at the end of a day."""
        if isinstance(self.spec.entry, ShowClickEntry):
            slots, _ = self._index.find(ids)
            self._rows.stats.array[slots[slots >= 0]] *= np.float32(self.spec.entry.decay)

    def knows(self, ids: Ids) -> Array:
        """Whether each id has a row."""
        slots, _ = self._index.find(ids)
        return slots >= 0

    def ids(self, number: int = 0, bits: int = 0) -> Ids:
        """Every id that has a row, or those in one part of the hash range."""
        return self._index.part(number, bits)[0]

    def drop(self, ids: Ids, number: int = 0, bits: int = 0) -> None:
        """Forget these ids, which are in this part of the hash range."""
        known, words = self._index.part(number, bits)
        gone = among(known, ids)
        self._rows.give_back(rows_of(words[gone]))
        self._index.prune(number, bits, gone)

    def begin_mark(self) -> int:
        """Changes from now on bear a new mark; returns the one they bear."""
        if self.mark == LAST_MARK - 1:
            self._renumber()
        self.mark += 1
        return self.mark

    def _renumber(self) -> None:
        """Begin days and marks anew before their bits are full; all rows count as changed."""
        ids, words = self._index.words()
        half = LAST_DAY // 2
        days = np.maximum(((words & DAY) >> DAY_SHIFT) - half, 0) if self.day > half else 0
        self.day = self.day - half if self.day > half else self.day
        self.mark, self.era = 1, self.era + 1
        self._index.replace(ids, rows_of(words) | (days << DAY_SHIFT) | (1 << MARK_SHIFT))

    def part(self, number: int, bits: int, since: int = 0) -> Rows:
        """Copies of the rows in one part of the hash range that changed after a mark."""
        ids, words = self._index.part(number, bits)
        if since:
            changed = ((words & MARK) >> MARK_SHIFT) >= since
            ids, words = ids[changed], words[changed]
        slots = rows_of(words)
        weights, state = self._rows.weights_of(slots), self._rows.state.array[slots]
        stats, days = self._rows.stats.array[slots], (words & DAY) >> DAY_SHIFT
        return Rows(ids, weights, state, stats, days.astype(np.int32))

    def clear(self) -> None:
        """Forget all rows, and who waits for one; the count of updates and the marks go on."""
        self._rows = self._no_rows()
        self._index = self._no_ids()
        if self._candidates is not None:
            self._candidates = Candidates(self._kernels)

    def reserve(self, rows: int) -> None:
        """Make room for so many rows; before many are ``put``."""
        self._index.reserve(rows)

    def put(self, rows: Rows) -> None:
        """Take rows that ``part`` gave, here or on another server."""
        if len(rows) == 0:
            return
        slots, _ = self._met(rows.ids)
        self._rows.set_weights(slots, rows.weights)
        for column, given in ((self._rows.state, rows.state), (self._rows.stats, rows.stats)):
            if given.shape[1] == column.width:
                column.array[slots] = given
        for day in np.unique(rows.days):
            stamp = (int(day) << DAY_SHIFT) | (self.mark << MARK_SHIFT)
            self._index.find(rows.ids[rows.days == day], ~(DAY | MARK), stamp)

    @property
    def largest(self) -> int:
        """Rows, or ids that wait for one, if those are more: what the parts of a save are for."""
        return max(len(self), 0 if self._candidates is None else len(self._candidates))

    def waiting_part(self, number: int, bits: int) -> tuple[Ids, Ids, Ids] | None:
        """Ids that were met but have no row yet, their counts and days; None if all are let in."""
        return None if self._candidates is None else self._candidates.part(number, bits)

    def put_waiting(self, ids: Ids, counts: Ids, days: Ids) -> None:
        """Take what ``waiting_part`` gave; ids that have a row here wait no more."""
        if self._candidates is not None:
            new = ~self.knows(ids)
            self._candidates.put(ids[new], counts[new], days[new])

    def describe(self) -> dict[str, Any]:
        """What a person may want to know."""
        return {"rows": len(self), "bytes": self.nbytes, "updates": self.updates, "day": self.day}

"""A sparse table larger than memory: rows that are used often are there, the others on the disk."""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from typing_extensions import override

from fleetx.ps.tables.arena import Arena
from fleetx.ps.tables.cold_rows import ColdRows, NoRoomError
from fleetx.ps.tables.entries import ShowClickEntry
from fleetx.ps.tables.index import DAY, DAY_SHIFT, MARK, MARK_SHIFT, fullness_for, rows_of
from fleetx.ps.tables.row_store import Rows
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.tables.sparse_table import SparseTable
from fleetx.ps.wire.arrays import Array, Floats, Ids

FEWEST = 1024
"""Rows that there is memory for in any case."""
PART_ROWS = 1 << 13
"""Rows among which those that are used least are looked for at once."""
LEAVING = 2
"""One in so many of them leaves at most, those used least; the more, the fewer are looked at."""
MEMORY_OF_USES = 40
"""Uses for each row in memory after which all counts of uses are halved."""
ONE_USE, MOST_USES = 4, 127
"""A use counts as more than one, so that it fades in steps."""
STAYS = 128
"""Beside the uses of a row: it is in use now."""
USES_BITS, FADED_BITS = 7, 16
"""On the disk, uses are where a row in memory has its number, and how often they had faded."""


class DiskTable(SparseTable):
    """The rows in memory are those of ``SparseTable``; the others are on the disk.

    Uses are counted, and old ones fade. When memory is full, a hand goes on round the hash range,
    and of the rows that it comes by those that were used least are written to the disk, so that
    neighbours in the hash range are so there, too. They come back when they are trained, and their
    uses, which the disk remembers, with them.
    """

    def __init__(
        self, spec: SparseSpec, engine: ModuleType | None = None, *, folder: Path | None = None
    ) -> None:
        super().__init__(spec, engine)
        self._cold = ColdRows(folder, self._rows.record, self._kernels, spec.memory)
        self._uses = Arena(1, np.uint8)
        self._hand = self._noted = self._faded = 0
        self._chance = np.random.default_rng(0)

    @property
    def _most(self) -> int:
        """Rows that there is memory for, beside the index of the others."""
        row = self._rows.row_bytes
        return max(
            FEWEST,
            int((self.spec.memory - self._cold.memory) / (row + fullness_for(row).most_bytes + 1)),
        )

    @override
    def __len__(self) -> int:
        return self.hot + len(self._cold)

    @property
    @override
    def nbytes(self) -> int:
        return super().nbytes + self._cold.memory

    @property
    def hot(self) -> int:
        """Rows in memory."""
        return self._index.size

    @override
    def _note_use(self, slots: Ids) -> None:
        uses, slots = self._uses.array[:, 0], slots[slots >= 0]
        uses[slots] = np.minimum(uses[slots] + ONE_USE, MOST_USES)
        self._noted += len(slots)
        if self._noted > MEMORY_OF_USES * self._most:
            uses[: self._rows.used] >>= 1
            self._noted, self._faded = 0, self._faded + 1

    @override
    def _found(self, ids: Ids, keep: int = -1, stamp: int = 0) -> tuple[Ids, int]:
        slots, missing = self._index.find(ids, keep, stamp)
        if missing:
            coming = self._kernels.dedupe(ids[slots < 0], 1)[0]
            self._make_room(len(coming), stay=slots[slots >= 0])
            if self._recall(coming):
                open_ = np.flatnonzero(slots < 0)
                slots[open_], missing = self._index.find(ids[open_], keep, stamp)
        return slots, missing

    def _recall(self, ids: Ids) -> int:
        """Bring rows back to memory; returns how many there were.

        The disk forgets them when they are here, so that none is lost if there is no memory.
        """
        records, places = self._cold.find(ids)
        if len(records):
            slots, stamps = self._rows.take_records(self._kernels, records), records["stamps"]
            self._begin_uses(slots, self._kept_uses(stamps))
            came = records["id"].copy()
            self._index.insert(came, (stamps & (DAY | MARK)) | slots)
            self._cold.forget(came, places)
        return len(records)

    def _begin_uses(self, slots: Ids, uses: Ids | int = 0) -> None:
        self._uses.reserve(self._rows.used)
        self._uses.array[slots, 0] = uses

    def _kept_uses(self, stamps: Ids) -> Ids:
        """The uses that records tell of, as much faded as if they had been in memory."""
        since = (self._faded - (stamps >> USES_BITS)) & ((1 << FADED_BITS) - 1)
        uses: Ids = (stamps & MOST_USES) >> np.minimum(since, USES_BITS)
        return uses

    def _with_uses(self, stamps: Ids, uses: Array) -> Ids:
        faded = (self._faded & ((1 << FADED_BITS) - 1)) << USES_BITS
        return (stamps & (DAY | MARK)) | faded | uses

    @override
    def _met(self, ids: Ids, keep: int = -1, stamp: int = 0) -> tuple[Ids, Ids]:
        slots, missing = self._found(ids, keep, stamp)
        if not missing:
            return slots, np.empty(0, np.int64)
        unknown = np.flatnonzero(slots < 0)
        slots[unknown], new = super()._met(ids[unknown], keep, stamp)
        self._begin_uses(slots[unknown[new]])
        return slots, unknown[new]

    @override
    def prepare(self, ids: Ids) -> None:
        self._found(ids)

    def _make_room(self, rows: int, stay: Ids) -> None:
        """Let rows go to the disk until so many more may come, or none is left to go."""
        uses, visits = self._uses.array[:, 0], 0
        uses[stay] |= STAYS
        try:
            while self.hot + rows > self._most and visits < 8 * LEAVING * (1 << self._bits):
                self._leave_memory()
                visits += 1
        finally:
            uses[stay] &= MOST_USES

    @property
    def _bits(self) -> int:
        return (self.hot // PART_ROWS).bit_length()

    def _leave_memory(self) -> None:
        """Let the hand go on by one part of the hash range."""
        bits = self._bits
        number = self._hand % (1 << bits)
        self._hand += 1
        ids, words = self._index.part(number, bits)
        slots = rows_of(words)
        uses = self._uses.array[slots, 0]
        gone = _least(uses, -(-len(slots) // LEAVING), self._chance)
        if gone.any():
            records = np.empty(int(gone.sum()), self._rows.record)
            records["id"], records["stamps"] = ids[gone], self._with_uses(words[gone], uses[gone])
            self._rows.fill_records(self._kernels, slots[gone], records)
            self._cold.add(records)
            self._rows.give_back(slots[gone])
            self._index.remove(ids[gone])

    @override
    def _show_unknown(self, ids: Ids, slots: Ids, out: Floats) -> None:
        super()._show_unknown(ids, slots, out)
        unknown = np.flatnonzero(slots < 0)
        records, _ = self._cold.find(np.unique(ids[unknown]))
        if len(records):
            records = records[np.argsort(records["id"])]
            at = np.minimum(np.searchsorted(records["id"], ids[unknown]), len(records) - 1)
            here = records["id"][at] == ids[unknown]
            out[unknown[here]] = self._rows.weights_in(records)[at[here]]

    @override
    def knows(self, ids: Ids) -> Array:
        known = super().knows(ids)
        known[~known] = self._cold.knows(ids[~known])
        return known

    @override
    def ids(self, number: int = 0, bits: int = 0) -> Ids:
        return np.concatenate(
            [super().ids(number, bits), self._cold.part(number, bits)["id"]], dtype=np.int64
        )

    @override
    def leaving(self, threshold: int, number: int = 0, bits: int = 0) -> Ids:
        records = self._cold.part(number, bits)
        gone = self._leaves(records["stamps"], self._rows.stats_in(records), threshold)
        return np.concatenate([super().leaving(threshold, number, bits), records["id"][gone]])

    @override
    def decay(self, ids: Ids) -> None:
        if isinstance(self.spec.entry, ShowClickEntry):
            slots, _ = self._index.find(ids)
            records, _ = self._cold.find(ids[slots < 0])
            self._rows.stats_in(records)[...] *= np.float32(self.spec.entry.decay)
            self._cold.put(records)  # first, for it may find no room
        super().decay(ids)

    @override
    def drop(self, ids: Ids, number: int = 0, bits: int = 0) -> None:
        super().drop(ids, number, bits)
        self._cold.delete(np.unique(ids))

    @override
    def _renumber(self) -> None:
        before = self.day
        super()._renumber()
        back = before - self.day
        for number in range(1 << (bits := (len(self) // PART_ROWS).bit_length())):
            records = self._cold.part(number, bits)
            days = np.maximum(((records["stamps"] & DAY) >> DAY_SHIFT) - back, 0)
            records["stamps"] = (days << DAY_SHIFT) | (self.mark << MARK_SHIFT)
            try:
                self._cold.put(records)
            except NoRoomError as error:  # while other parts have changed already
                raise OSError(*error.args) from error

    @override
    def part(self, number: int, bits: int, since: int = 0) -> Rows:
        hot, records = super().part(number, bits, since), self._cold.part(number, bits)
        records = records[((records["stamps"] & MARK) >> MARK_SHIFT) >= since]
        cold = Rows(
            records["id"],
            self._rows.weights_in(records),
            self._rows.state_in(records),
            self._rows.stats_in(records),
            ((records["stamps"] & DAY) >> DAY_SHIFT).astype(np.int32),
        )
        both = zip(vars(hot).values(), vars(cold).values(), strict=True)
        return Rows(*(np.concatenate(pair) for pair in both))

    @override
    def put(self, rows: Rows) -> None:
        """Take rows to the disk at once: they come in the order of hashes, and not to be used."""
        columns = self._rows.columns
        complete = rows.state.shape[1] == columns["state"].width
        if len(rows) == 0 or not complete or rows.stats.shape[1] != columns["stats"].width:
            super().put(rows)
            return
        self._cold.reserve(len(rows))
        slots, missing = self._index.find(rows.ids)
        if missing < len(rows):  # what is in memory would hide them
            self.drop(rows.ids[slots >= 0])
        records = np.empty(len(rows), self._rows.record)
        records["id"], records["state"], records["stats"] = rows.ids, rows.state, rows.stats
        stamps = (rows.days.astype(np.int64) << DAY_SHIFT) | (self.mark << MARK_SHIFT)
        records["stamps"] = stamps
        self._rows.put_weights(records, rows.weights)
        self._cold.put(records)

    @override
    def clear(self) -> None:
        super().clear()
        self._cold.clear()

    @override
    def reserve(self, rows: int) -> None:
        self._cold.expect(rows)
        super().reserve(min(rows, self._most))

    @override
    def describe(self) -> dict[str, Any]:
        return super().describe() | {"rows_in_memory": self.hot, "disk_bytes": self._cold.nbytes}


def _least(uses: Array, count: int, chance: np.random.Generator) -> Array:
    """Whether each is among so many of the least, not used more than most, and not in use now.

    Among equal ones by chance: in their order, some ranges of hashes would be emptied and others
    would crowd the index.
    """
    gone, free = np.zeros(len(uses), bool), uses < STAYS
    if free.any():
        ranks = (uses.astype(np.uint32) << 16) | chance.integers(0, 1 << 16, len(uses), np.uint32)
        gone[np.argpartition(ranks, count - 1)[:count]] = True
        # Where most rows are used all the time, fewer leave: the others. One leaves in any case.
        gone &= free & (uses <= uses[free].mean())
    return gone


def made(spec: SparseSpec, folder: Path | None = None) -> SparseTable:
    """The table of a description; ``folder`` is where rows go that memory has no room for."""
    return DiskTable(spec, folder=folder) if spec.storage == "disk" else SparseTable(spec)

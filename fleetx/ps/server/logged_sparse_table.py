"""A sparse table with a log."""

import contextlib
import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from fleetx.ps.server.changes import Change
from fleetx.ps.server.day_end import Call, DayEnd, packed_part, unpacked_part
from fleetx.ps.server.followed_changes import FollowedChanges
from fleetx.ps.server.logged_table import LoggedTable
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.recent_changes import RecentChanges
from fleetx.ps.server.written_save import WrittenSave
from fleetx.ps.tables import disk_table, kernels
from fleetx.ps.tables.cold_rows import NoRoomError
from fleetx.ps.tables.entries import ShowClickEntry
from fleetx.ps.tables.hashing import parts_of
from fleetx.ps.tables.log_file import Record
from fleetx.ps.tables.row_store import Rows
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.tables.sparse_table import ONE_SHOW
from fleetx.ps.wire.arrays import Array, Floats, Ids
from fleetx.ps.wire.frames import SHORT, BadFrameError, Flag, Frame, Op
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.wire.pipes import Bytes
from fleetx.ps.wire.short_floats import shortened, widened, width_of
from fleetx.ps.wire.versions import Version

logger = logging.getLogger(__name__)

ADMIT, DAY_END, DAY_END_PART = 2, 5, 6
"""Kinds of records beside pushes."""
PART_ROWS = 4096
"""Rows that the end of a day goes through at once: pushes wait less than a millisecond for it."""
PAUSE = 0.001
"""Seconds between two parts. Locks are not fair: without a pause pushes would wait for many."""
MOST_BITS = 32
"""A table is looked through in two to the power of this many parts at most."""


class LoggedSparseTable(LoggedTable):
    """Pulls make rows, which needs no log: they follow from the id."""

    takes = frozenset({Op.PULL, Op.PUSH})

    def __init__(
        self, spec: SparseSpec, membership: Membership, folder: Path | None, durable: bool = False
    ) -> None:
        self.table = disk_table.made(spec, None if folder is None else folder.parent)
        super().__init__(self.table, membership, folder, durable)
        self.waits_for_disk |= spec.storage == "disk"
        self.saved_at: Array | None = None
        """While a log is replayed: the last record that each part of the table knows."""
        self._saved_mark = 0, 0
        """Of the last save of the user: rows with this mark or a later one are not in it."""
        self.saved_as = ""
        """The identity of that save here; "" if nobody knows, as after a death: then the next delta
        holds all rows, and may be loaded onto whatever was saved after the last checkpoint."""
        self._written: WrittenSave | None = None
        """A later one, of which nobody has said yet that all servers have written it."""
        self.moved_by_differences = False
        """Whether workers moved the rows last, as in geo: then the state of the rule is theirs."""
        self.loaded: frozenset[str] = frozenset()
        """The identities of the pieces that were loaded last, of all servers that wrote them."""
        self.removed: list[Ids] = []
        """Ids dropped since then; some may be back."""
        self.shrunk: dict[int, tuple[int, int]] = {}
        """Client -> the number of its last call that ended a day, and how many rows went."""
        self.day_end: DayEnd | None = None
        """While the end of a day goes through the table."""
        self._ending = threading.Lock()
        self._replayed, self._replaying = 0, False
        self.recent_changes = RecentChanges()
        self.followed = FollowedChanges(None if folder is None else folder.parent)
        self.followed_after = 0
        """The last record that a save of this server knows: all behind it are in the log."""

    def pull(self, claim: Claim, frame: Frame, body: memoryview, out: Floats) -> None:
        """Write the rows of the ids in ``body`` to ``out``."""
        n = frame.count
        ids = np.frombuffer(body, np.int64, n)
        met = np.frombuffer(body, np.uint32, n, 8 * n) if frame.flags & Flag.COUNTS else None
        train = bool(frame.flags & Flag.TRAIN)
        with self.table.lock:
            self.require_intact()
            try:
                admitted = self.table.pull(ids, out, met, train=train)
            except NoRoomError:  # no row was made
                raise
            except Exception as error:
                raise self.mark_lost(error) from error
            if admitted is not None and len(admitted):
                self._note_admitted(admitted)
            self.pulled += n
            self.staleness.read(claim.worker, self.version)

    def changed_ids(self, claim: Claim, frame: Frame) -> tuple[int, Ids | None]:
        """The last change, and what others changed after the one asked about; None if unknown."""
        with self.table.lock:
            self.require_intact()
            last, found = self.recent_changes.since(frame.step, frame.seq)
            self.staleness.read(claim.worker, self.version)
        if found is None:
            return last, None
        ids = np.concatenate([np.empty(0, np.int64), *found])
        return last, ids if len(found) < 2 else kernels.active.dedupe(ids, 1)[0]

    def changed_since(self, version: Version) -> tuple[Version, Ids | None]:
        """The version of now, and the ids that were changed or dropped since another one.

        None instead of ids if nobody knows, or not any more.
        """
        with self.table.lock:
            self.require_intact()
            now, found = self.followed.since(version, self._record_number())
        if found is None:
            return now, None
        ids = np.concatenate([np.empty(0, np.int64), *found])
        return now, ids if len(found) < 2 else kernels.active.dedupe(ids, 1)[0]

    def fetch(self, ids: Ids) -> tuple[Ids, Floats]:
        """Those of the ids that have a row, and the rows; none is made, and none counts as met."""
        with self.table.lock:
            self.require_intact()
            return self._rows_of(ids[self.table.knows(ids)])

    def scan(self, number: int, bits: int) -> tuple[Ids, Floats]:
        """The same for all ids in one of ``2**bits`` parts of the table."""
        if not 0 <= bits <= MOST_BITS or not 0 <= number < 1 << bits:
            raise BadFrameError(f"a table has no part {number} of two to the power of {bits}")
        with self.table.lock:
            self.require_intact()
            return self._rows_of(self.table.part(number, bits).ids)

    def _rows_of(self, ids: Ids) -> tuple[Ids, Floats]:
        rows = np.empty((len(ids), self.table.spec.dim), np.float32)
        self.table.pull(ids, rows, train=False)
        return ids, rows

    @override
    def replaced(self) -> contextlib.AbstractContextManager[None]:
        return self.followed.replaced()

    def put_copies(self, rows: Rows, gone: Ids) -> None:
        """Take what another server has, and drop what it has no more."""
        with self.table.lock:
            self.table.put(rows)
            known = gone[self.table.knows(gone)]
            if len(known):
                self.table.drop(known)
            self.followed.note(np.concatenate([rows.ids, known]), None)

    def _record_number(self) -> int | None:
        """The record that changes are made by now; None without a log."""
        if self._replaying:
            return self._replayed
        return None if self.journal is None else self.journal.number

    @override
    def replay(self, after: int) -> None:
        assert self.journal is not None
        self.followed.begin_replay(self.followed_after)
        self._replaying = True
        try:
            super().replay(after)
        finally:
            self._replaying = False
        self.followed.end_replay(self.journal.number)

    def _note_admitted(self, ids: Ids) -> None:
        if self.journal is not None:
            try:
                self.journal.append(ADMIT, [ids])
            except OSError:
                self.table.drop(ids)  # a row that no log knows would not come back
                raise
        self.followed.note(ids, self._record_number())

    @override
    def reply_bytes(self, frame: Frame) -> int:
        return 4 * frame.count * self.table.spec.dim

    @override
    def parsed(self, frame: Frame, body: memoryview) -> Change:
        n, width = frame.count, frame.width
        if width != self.table.spec.dim:
            raise BadFrameError(
                f"rows of {width} floats were pushed to table {self.spec.name!r}, which has "
                f"{self.table.spec.dim}"
            )
        ids = np.frombuffer(body, np.int64, n)
        if short := frame.flags & SHORT:
            values = widened(np.frombuffer(body, np.int16, n * width, 8 * n), short)
        else:
            values = np.frombuffer(body, np.float32, n * width, 8 * n)
        values = values.reshape(n, width)
        if not frame.flags & Flag.COUNTS:
            return Change(ids, values, None)
        end = 8 * n + width_of(short) * n * width
        stats = np.frombuffer(body[end:].tobytes() if short else body[end:], np.float32, 2 * n)
        return Change(ids, values, stats.reshape(n, 2))

    @override
    def without_not_finite(self, frame: Frame, change: Change) -> tuple[Frame, memoryview, Change]:
        """Rows do not move for which one number is not finite."""
        kept = np.isfinite(change.values).all(axis=1)
        ids, values = change.ids[kept], change.values[kept]
        stats = None if change.stats is None else change.stats[kept]
        arrays = [ids, shortened(values, frame.flags), *([] if stats is None else [stats])]
        body = b"".join(array.tobytes() for array in arrays)
        head = frame._replace(count=len(ids), body=len(body))
        return head, memoryview(body), Change(ids, values, stats)

    @override
    def prepare(self, change: Change) -> None:
        self.table.prepare(change.ids)

    @override
    def apply(self, frame: Frame, change: Change) -> None:
        if frame.rate != 0 or frame.flags & Flag.DELTA:
            self.followed.note(change.ids, self._record_number())
        if self.saved_at is not None:
            change = self._unsaved(change)
        unique = bool(frame.flags & Flag.UNIQUE)
        if not frame.flags & Flag.INITIAL and len(change.ids):
            self._note_who_moves(frame)
        if frame.flags & Flag.INITIAL:
            self.recent_changes.note(self.table.give(change.ids, change.values), 0)
        elif frame.flags & Flag.DELTA:
            self.table.add(change.ids, change.values, unique=unique)
            self.recent_changes.note(change.ids, frame.step)
        else:
            rate = None if frame.rate < 0 else frame.rate
            self.table.push(change.ids, change.values, rate, unique=unique, stats=change.stats)
            if frame.rate != 0:
                self.recent_changes.note(change.ids, 0)

    def _note_who_moves(self, frame: Frame) -> None:
        """Say that rows of a geo job go on without the state that its workers had."""
        if frame.flags & Flag.DELTA:
            self.moved_by_differences = True
        elif frame.rate != 0 and self.moved_by_differences:
            self.moved_by_differences = False
            if (rule := self.table.spec.rule).state_width(self.table.spec.dim):
                logger.warning(
                    "rows of table %s come from a geo job, whose workers keep the state of %s for "
                    "themselves, so their state here is that of new rows",
                    self.spec.name,
                    type(rule).__name__,
                )

    @override
    def merged(self, changes: list[Change]) -> Change:
        """The sum over workers divided by their number; ids of several workers come twice."""
        ids = np.concatenate([change.ids for change in changes])
        share = np.float32(1 / len(changes))
        values = np.concatenate([change.values for change in changes]) * share
        return Change(*self.table.summed(ids, values, _all_stats(changes)))

    def shrink(self, threshold: int, call: Call | None = None) -> int:
        """End a day, once for each call that has a number; returns how many rows were dropped.

        Rows are gone through in parts, between which others pull and push.
        """
        with self._ending:
            self.finish_day_end()  # one that a full disk has interrupted
            call = call or Call(0, 0)
            if call.number and call.number <= self.shrunk.get(call.client, (0, 0))[0]:
                return self.shrunk[call.client][1]
            self._begin_day_end(threshold, call)
            return self.finish_day_end()

    def _begin_day_end(self, threshold: int, call: Call) -> None:
        with self.changed:
            self.require_intact()
            bits = (self.table.largest // PART_ROWS).bit_length()
            end = DayEnd(self.table.day + 1, threshold, bits, call)

            def begin() -> None:
                self.table.begin_day(end.day)
                self.day_end = end

            self.log_and_apply(DAY_END, [end.packed()], begin)

    def finish_day_end(self) -> int:
        """Go through what is left of the table, if a day is ending; returns how many rows went."""
        end = self.day_end
        while end is not None and not end.complete:
            with self.changed:
                self.require_intact()
                self._end_day_in_part(end)
            pause()
        return 0 if end is None else end.gone

    def _end_day_in_part(self, end: DayEnd) -> None:
        number, table = end.done, self.table
        gone = table.leaving(end.threshold, number, end.bits)
        if len(gone) or self._fades or number + 1 == 1 << end.bits:
            parts: list[Bytes | Array] = [packed_part(number), gone]
            self.log_and_apply(DAY_END_PART, parts, lambda: self._leave_part(end, number, gone))
        end.done = number + 1
        table.forget_waiting(end.threshold, number, end.bits)

    @property
    def _fades(self) -> bool:
        """Whether rows have counts that fade at the end of a day."""
        return isinstance(self.table.spec.entry, ShowClickEntry)

    def _leave_part(self, end: DayEnd, number: int, gone: Ids) -> None:
        """Let counts of a part fade and drop some of its rows; again, when a log is replayed."""
        if self._fades:
            fading = self.table.ids(number, end.bits)
            self.table.decay(fading[self._not_in_save(fading)])
        self.table.drop(gone[self._not_in_save(gone)], number, end.bits)
        end.done, end.gone = number + 1, end.gone + len(gone)
        self.removed.append(gone)
        self.followed.note(gone, self._record_number())
        self.recent_changes.forget()
        if end.complete:
            self.day_end = None
            if end.call.number:
                self.shrunk[end.call.client] = end.call.number, end.gone

    @override
    def brief(self) -> dict[str, Any]:
        return {"name": self.spec.name, "kind": "sparse", "rows": len(self.table)}

    def unsaved_since(self) -> int:
        """The mark of the oldest changes that no save of the user holds; 0 if all rows count."""
        era, mark = self._saved_mark
        return mark if era == self.table.era else 0

    def note_written(self, save: WrittenSave) -> None:
        """A save of the user is written here, and may fail on another server or table."""
        with self.changed:
            self._written = save

    def mark_saved(self) -> None:
        """The save that was written last is complete on all servers: the next delta continues it.

        Nothing if it was asked for before, or this server was started again in between.
        """
        with self.changed:
            if (save := self._written) is not None:
                self._saved_mark, self.saved_as = (save.era, save.mark), save.identity
                del self.removed[: save.removed]
                self._written = None

    def mark_found(self, root: Path) -> None:
        """The same for a save whose worker died before it could say so, unless it is written anew.

        Other servers may have been told: deltas that continue different saves could not be loaded.
        """
        save = self._written
        if save is not None and save.root != root and save.complete:
            self.mark_saved()

    @override
    def replay_record(self, record: Record) -> None:
        self._replayed = record.number
        if record.kind == ADMIT:
            ids: Ids = np.frombuffer(record.data, np.int64)
            self.table.admit(ids[self._not_in_save(ids)])
            self.followed.note(ids, record.number)
        elif record.kind == DAY_END:
            self._replay_day_end(DayEnd.unpacked(record.data))
        elif record.kind == DAY_END_PART:
            number, data = unpacked_part(record.data)
            if self.day_end is not None and number >= self.day_end.done:
                self._leave_part(self.day_end, number, np.frombuffer(data, np.int64))
        else:
            super().replay_record(record)

    def _replay_day_end(self, end: DayEnd) -> None:
        if end.day > self.table.day:  # else the save knows that it began
            self.table.begin_day(end.day)
            self.day_end = end

    def _unsaved(self, change: Change) -> Change:
        """What a change does to those parts of the table that were saved before it."""
        late = self._not_in_save(change.ids)
        stats = None if change.stats is None else change.stats[late]
        return Change(change.ids[late], np.ascontiguousarray(change.values[late]), stats)

    def _not_in_save(self, ids: Ids) -> Array:
        """Whether the part of each id was saved before the record that is being redone."""
        if self.saved_at is None:
            return np.ones(len(ids), bool)
        bits = len(self.saved_at).bit_length() - 1
        parts = parts_of(ids, bits) if bits else np.zeros(len(ids), np.int64)
        late: Array = self.saved_at[parts] < self._replayed
        return late


def pause() -> None:
    """Let others come in between two parts."""
    time.sleep(PAUSE)


def _all_stats(changes: list[Change]) -> Floats | None:
    """Shows and clicks of all ids, as far as any worker knows them: else an id was shown once."""
    if all(change.stats is None for change in changes):
        return None
    each = [np.tile(ONE_SHOW, (len(c.ids), 1)) if c.stats is None else c.stats for c in changes]
    return np.concatenate(each)

"""A worker's own copies of rows, which it trains between two exchanges with the servers."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from fleetx.ps.tables import kernels
from fleetx.ps.tables.arena import Arena
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.index import Index, stamped
from fleetx.ps.tables.row_store import RowStore
from fleetx.ps.tables.rules import Rule
from fleetx.ps.wire.arrays import Array, Floats, Ids
from fleetx.ps.wire.short_floats import rounded
from fleetx.ps.worker.unbroken import unbroken

Pull = Callable[[IdBatch, Ids | None], Floats]

UNKNOWN, STALE, FRESH = 0, 1, 2
"""The state of a copy: to be overwritten, to be moved by what others learned, or up to date."""
RECENT_EXCHANGES = 4
"""Rows that were trained in so many exchanges are brought up to date there; others when used."""
REMEMBERED = 4
"""Batches whose slots are kept: rows that were looked up will be trained soon."""


class Source(Protocol):
    """The table that the rows are copies of."""

    def pull(self, batch: IdBatch, sightings: Ids | None) -> Floats:
        """Rows as they are now."""

    def push(self, batch: IdBatch, delta: Floats) -> None:
        """Add to rows, before anything else is asked; must not wait."""

    def changed_ids(self) -> IdBatch | None:
        """The ids of rows that others have changed since the last time; None if any may be."""


class RowCopies:
    """The rows of one table that this worker has met.

    A row keeps its place for good, so that places found for a batch stay true without the lock. Its
    memory may move when others are added, so nobody holds on to an array of it without the lock.
    """

    def __init__(
        self, dim: int, rule: Rule, servers: int, *, counting: bool = False, short: int = 0
    ) -> None:
        """Make room for rows.

        Args:
            dim: floats in a row.
            rule: how they are trained here.
            servers: of the table.
            counting: whether servers are told how often rows are met, so that they let them in.
            short: the flag of the dtype in which differences travel.
        """
        self._dim, self._rule, self._servers = dim, rule, servers
        self._counting, self._short = counting, short
        self._index = Index(kernels.active)
        self._rows = RowStore(dim, rule, counted=False)
        self._before = Arena(dim, np.float32)
        """The same rows as the servers have them, as far as this worker knows."""
        self._freshness = Arena(1, np.int8)
        self._trained = Arena(1, np.int64)
        """Before which exchange a row was last trained; zero when it never was."""
        self._sightings = Arena(1, np.int64)
        """How often a row was met since the servers were last told."""
        self._exchange = 1 + RECENT_EXCHANGES  # rows that were never trained were not so lately
        self._moved: list[tuple[IdBatch, Ids]] = []
        """What was trained since the last exchange, each row once, and its places."""
        self._found: deque[tuple[IdBatch, Ids]] = deque(maxlen=REMEMBERED)
        self._lock = threading.Lock()  # rows are also looked up by the thread that fetches ahead
        self._asking = threading.Lock()
        """Held while servers are asked: what they say is taken before our next difference."""

    def look_up(self, batch: IdBatch, pull: Pull, met: Array | None = None) -> Floats:
        """The rows of a batch; those that are not known, or behind, are pulled.

        Args:
            batch: which rows.
            pull: asks servers for rows and tells them how often each was met since they were asked,
                if that is counted.
            met: how often each was met in this batch.
        """
        with self._lock:
            slots = self._slots(batch.ids)
            self._found.append((batch, slots))
            if met is not None and self._counting:
                self._sightings.array[slots, 0] += met
            stale = len(self._stale(slots))
        if stale:
            self._fetch(batch, slots, pull)
        out = np.empty((len(slots), self._dim), np.float32)
        with self._lock:
            kernels.active.gather(self._rows.tables[0], slots, out)
        return out

    def _fetch(self, batch: IdBatch, slots: Ids, pull: Pull) -> None:
        with self._asking:
            with self._lock:
                stale = self._stale(slots)  # once more: another thread may have fetched some
                sightings = self._take_sightings(slots[stale]) if self._counting else None
            if len(stale):
                self._take(slots[stale], pull(_part(batch, stale), sightings))

    def _take_sightings(self, slots: Ids) -> Ids:
        """How often rows were met; counted anew from now on."""
        told: Ids = self._sightings.array[slots, 0]
        self._sightings.array[slots, 0] = 0
        return told

    def _slots(self, ids: Ids) -> Ids:
        slots, missing = self._index.find(ids)
        if missing:
            unknown = slots < 0
            new = self._rows.take(missing)
            self._index.insert(ids[unknown], stamped(new, 0, 0))
            for arena in (self._before, self._freshness, self._trained):
                arena.reserve(self._rows.capacity)
            if self._counting:
                self._sightings.reserve(self._rows.capacity)
            slots[unknown] = new
        return slots

    def _stale(self, slots: Ids) -> Ids:
        return self._find_differing(self._freshness, slots, FRESH, leave=True)

    @staticmethod
    def _find_differing(marks: Arena, slots: Ids, value: int, *, leave: bool) -> Ids:
        """Which of the slots bear another mark; they get this one, unless they are left."""
        found = np.empty(len(slots), np.int64)
        return found[: kernels.active.find_differing(marks.array[:, 0], slots, value, leave, found)]

    def _take(self, slots: Ids, weights: Floats) -> None:
        """Rows from the servers: copies move by what others did, and keep what we did."""
        with self._lock:
            new = slots[self._freshness.array[:, 0].take(slots) == UNKNOWN]
            self._rows.weights.array[new] = self._before.array[new] = 0
            kernels.active.renew(self._rows.tables[0], self._before.array, slots, weights)
            self._freshness.array[:, 0][slots] = FRESH

    def train(self, batch: IdBatch, gradients: Floats, rate: float) -> None:
        """Move the copies; a negative rate leaves it to the rule."""
        with self._lock:
            slots = self._places(batch)
            first = self._find_differing(self._trained, slots, self._exchange, leave=False)
            if len(first):
                self._moved.append((_part(batch, first), slots[first]))
            rate = self._rule.lr if rate < 0 else rate
            self._rule.apply(kernels.active, self._rows.tables, slots, gradients, rate)

    def _places(self, batch: IdBatch) -> Ids:
        for known, slots in self._found:
            if known is batch:
                return slots
        slots, missing = self._index.find(batch.ids)
        assert missing == 0, "a row is looked up before it has a gradient"
        return slots

    def exchange(self, source: Source, share: float) -> None:
        """Give a share of what was learned, and take over what others have learned.

        The rest of it stays here, and is given little by little: so all of it arrives, and a row
        that many workers train does not move by all their steps at once.
        """
        with self._asking:
            with unbroken():  # what servers are assumed to know must be on its way
                source.push(*self._differences(share))
            if self._counting:
                # Only who asks for a row says that it was met; and those that servers do not let in
                # must not be learned.
                self._forget_all()
            else:
                self._catch_up(source)

    def _differences(self, share: float) -> tuple[IdBatch, Floats]:
        """A share of what was learned, which the servers are now assumed to know."""
        with self._lock:
            batch, slots = self._all_moved()
            delta = np.empty((len(slots), self._dim), np.float32)
            kernels.active.differences(
                self._rows.tables[0], self._before.array, slots, share, delta
            )
            delta = rounded(delta, self._short)
            kernels.active.add(self._before.array, slots, delta)
            self._moved.clear()
            self._exchange += 1
        return batch, delta

    def _catch_up(self, source: Source) -> None:
        try:
            slots, wanted = self._behind(source.changed_ids())
        except BaseException:  # Ctrl-C: servers do not tell again what they may have told
            self._behind(None)
            raise
        if len(wanted.ids):
            self._take(slots, source.pull(wanted, None))

    def _behind(self, changed_ids: IdBatch | None) -> tuple[Ids, IdBatch]:
        """Note which rows are behind; returns places and ids of those that are wanted soon."""
        if changed_ids is None:
            with self._lock:
                self._mark_stale(slice(self._index.size))
            return np.empty(0, np.int64), IdBatch.of(np.empty(0, np.int64), self._servers)
        with self._lock:
            slots, _ = self._index.find(changed_ids.ids)
            known = np.flatnonzero(slots >= 0)
            slots = slots[known]
            self._mark_stale(slots)
            soon = self._trained.array[:, 0].take(slots) > self._exchange - 1 - RECENT_EXCHANGES
        return slots[soon], _part(changed_ids, known[soon])

    def _mark_stale(self, slots: Ids | slice) -> None:
        worth = self._freshness.array[:, 0]
        worth[slots] = np.minimum(worth[slots], STALE)

    def forget(self) -> None:
        """Let all rows be asked for anew; what the servers were not given is let go."""
        with self._asking:
            self._forget_all()

    def _forget_all(self) -> None:
        with self._lock:
            self._moved.clear()
            self._exchange += 1
            self._freshness.array[: self._index.size] = UNKNOWN

    def _all_moved(self) -> tuple[IdBatch, Ids]:
        """All rows that were trained, sorted by server, and their places."""
        ids, slots = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        begins = np.zeros(self._servers + 1, np.int64)
        for server in range(self._servers):
            for batch, places in self._moved:
                cut = slice(batch.begins[server], batch.begins[server + 1])
                ids.append(batch.ids[cut])
                slots.append(places[cut])
            begins[server + 1] = sum(len(part) for part in ids)
        every = np.concatenate(ids)
        return IdBatch(every, begins, np.arange(len(every))), np.concatenate(slots)


def _part(batch: IdBatch, chosen: Ids) -> IdBatch:
    """Some rows of a batch, named by their places in it."""
    begins = np.searchsorted(chosen, batch.begins)
    return IdBatch(batch.ids[chosen], begins, np.arange(len(chosen)))

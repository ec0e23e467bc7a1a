"""A worker's own copies of rows, which it trains between two exchanges with the servers."""

import threading
from collections.abc import Callable

import numpy as np

from fleetx.ps import kernels
from fleetx.ps.arena import Arena
from fleetx.ps.client import Batch
from fleetx.ps.hashing import Array, Floats, Ids
from fleetx.ps.index import Index, stamped
from fleetx.ps.row_store import RowStore
from fleetx.ps.rules import Rule

Pull = Callable[[Batch, Ids | None], Floats]


class Copies:
    """The rows of one table that this worker has met.

    A row keeps its place for good, so that places found for a batch stay true without the lock.
    """

    def __init__(self, dim: int, rule: Rule, servers: int, *, counting: bool = False) -> None:
        self._dim, self._rule, self._servers = dim, rule, servers
        self._counting = counting
        self._index = Index(kernels.active)
        self._rows = RowStore(dim, rule, counted=False)
        self._before = Arena(dim, np.float32)
        """The same rows as the servers gave them."""
        self._asked = Arena(1, np.int64)
        """The exchange since which a row is here; zero when it never was."""
        self._sightings = Arena(1, np.int64)
        """How often a row was met since the servers were last told."""
        self._exchange = 1
        self._fresh: list[tuple[Batch, Ids]] = []
        """What was asked for since the last exchange, and its places."""
        self._lock = threading.Lock()  # rows are also looked up by the thread that fetches ahead

    def look_up(self, batch: Batch, pull: Pull, met: Array | None = None) -> Floats:
        """The rows of a batch; those not asked for since the last exchange are pulled.

        Args:
            batch: which rows.
            pull: asks servers for rows and tells them how often each was met since they were asked,
                if that is counted.
            met: how often each was met in this batch.
        """
        with self._lock:
            slots = self._slots(batch.ids)
            stale = np.flatnonzero(self._stale(slots))
            sightings = self._sighted(slots, stale, met) if self._counting else None
        if len(stale):
            begins = np.searchsorted(stale, batch.begins)
            wanted = Batch(batch.ids[stale], begins, np.arange(len(stale)))
            self._take(wanted, slots[stale], pull(wanted, sightings))
        out = np.empty((len(slots), self._dim), np.float32)
        with self._lock:
            kernels.active.gather(self._rows.tables[0], slots, out)
        return out

    def _sighted(self, slots: Ids, stale: Ids, met: Array | None) -> Ids:
        """What servers are to be told of the stale ones now, and not again."""
        if met is not None:
            self._sightings.array[slots, 0] += met
        told: Ids = self._sightings.array[slots[stale], 0]
        self._sightings.array[slots[stale], 0] = 0
        return told

    def _slots(self, ids: Ids) -> Ids:
        slots, missing = self._index.find(ids)
        if missing:
            strangers = slots < 0
            new = self._rows.take(missing)
            self._index.insert(ids[strangers], stamped(new, 0, 0))
            self._before.reserve(self._rows.room)
            self._asked.reserve(self._rows.room)
            if self._counting:
                self._sightings.reserve(self._rows.room)
            slots[strangers] = new
        return slots

    def _stale(self, slots: Ids) -> Array:
        stale: Array = self._asked.array[:, 0].take(slots) != self._exchange
        return stale

    def _take(self, batch: Batch, slots: Ids, weights: Floats) -> None:
        """Rows from the servers; the rule's state of old copies stays."""
        with self._lock:
            # Rows that came meanwhile, for another batch, may have been trained since.
            late = self._stale(slots)
            if not late.all():
                begins = np.concatenate([[0], np.cumsum(late)])[batch.begins]
                batch = Batch(batch.ids[late], begins, batch.place[: int(begins[-1])])
                slots, weights = slots[late], weights[late]
            self._rows.weights.array[slots] = weights
            self._before.array[slots] = weights
            self._asked.array[slots] = self._exchange
            self._fresh.append((batch, slots))

    def train(self, batch: Batch, gradients: Floats, rate: float) -> None:
        """Move the copies; a negative rate leaves it to the rule."""
        with self._lock:
            slots, missing = self._index.find(batch.ids)
            assert missing == 0, "a row is looked up before it has a gradient"
            rate = self._rule.lr if rate < 0 else rate
            self._rule.apply(kernels.active, self._rows.tables, slots, gradients, rate)

    def changes(self, share: float) -> tuple[Batch, Floats]:
        """What was learned since the last exchange, and a new beginning."""
        with self._lock:
            batch, slots = self._met()
            old = np.empty((len(slots), self._dim), np.float32)
            new = np.empty_like(old)
            kernels.active.gather(self._before.array, slots, old)
            kernels.active.gather(self._rows.tables[0], slots, new)
            self._fresh.clear()
            self._exchange += 1
        new -= old
        new *= np.float32(share)
        return batch, new

    def forget(self) -> None:
        """Let all rows be asked for anew; what was learned since the last exchange is let go."""
        with self._lock:
            self._fresh.clear()
            self._exchange += 1

    def _met(self) -> tuple[Batch, Ids]:
        """All rows that are fresh, sorted by server, and their places."""
        ids, slots = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        begins = np.zeros(self._servers + 1, np.int64)
        for server in range(self._servers):
            for batch, places in self._fresh:
                cut = slice(batch.begins[server], batch.begins[server + 1])
                ids.append(batch.ids[cut])
                slots.append(places[cut])
            begins[server + 1] = sum(len(part) for part in ids)
        every = np.concatenate(ids)
        return Batch(every, begins, np.arange(len(every))), np.concatenate(slots)

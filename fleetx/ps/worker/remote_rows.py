"""A table on the servers, as it is seen by copies of its rows."""

import secrets

from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.wire.arrays import Floats, Ids
from fleetx.ps.worker.table_handle import TableHandle
from fleetx.ps.worker.worker import Worker


class RemoteRows:
    """Gives rows, takes differences, and tells which rows others have changed."""

    def __init__(self, worker: Worker, handle: TableHandle) -> None:
        self._worker, self.handle = worker, handle
        self._name = secrets.randbits(62) + 1
        """Known to the servers, so that our own changes are no news to us."""
        self._seen = [0] * worker.client.servers
        """The last change on each server that we were told of."""

    def pull(self, batch: IdBatch, sightings: Ids | None) -> Floats:
        """Rows as they are now."""
        return self._worker.client.pull(self.handle, batch, met=sightings)

    def pull_ahead(self, batch: IdBatch, sightings: Ids | None) -> Floats:
        """The same on a connection of its own, for the thread that fetches ahead."""
        return self._worker.ahead.pull(self.handle, batch, met=sightings)

    def push(self, batch: IdBatch, delta: Floats) -> None:
        """Add to rows, before anything else is asked of the servers."""
        client = self._worker.client
        client.owe(client.pushing(self.handle, batch, delta, delta=True, step=self._name))

    def changed_ids(self) -> IdBatch | None:
        """The ids of rows that others have changed since the last time; None if any may be."""
        return self._worker.client.changed_ids(self.handle, self._seen, self._name)

"""Workers that do not wait for each other: pushes are applied as they come."""

import queue
import threading
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from typing_extensions import override

from fleetx.ps.tables.sparse_spec import Pace
from fleetx.ps.wire.arrays import Floats
from fleetx.ps.worker.carrier import Carrier, Rates
from fleetx.ps.worker.client import Client
from fleetx.ps.worker.dense_group import DenseGradients, mean
from fleetx.ps.worker.row_gradients import RowGradients, joined
from fleetx.ps.worker.worker import Worker

Dense = list[DenseGradients]
Sparse = Mapping[str, RowGradients]
Update = tuple[tuple[Dense, Sparse], Rates]
"""Gradients, and the rates that they were found at."""


class _UnsynchronizedCarrier(Carrier):
    """What both kinds share: no worker waits for another."""

    exact_prefetch = False  # a row lacks what was pushed after it was fetched

    @override
    def pace(self, worker: Worker) -> Pace:
        return self.options.pace

    @override
    def agree(self, flag: Tensor) -> Tensor:
        return flag


class HalfAsyncCarrier(_UnsynchronizedCarrier):
    """Several batches make one push, and the worker waits for its own push alone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._held: list[tuple[Dense, Sparse]] = []
        self._last: Rates | None = None
        """The rates of the last batch that is held."""

    @override
    def deliver(self) -> None:
        worker = self.worker
        self._held.append((self._dense(), self._sparse()))
        self._last = self.rates()
        self.count(worker)
        full = len(self._held) >= self.options.merge
        if full or 0 <= self.options.bound < len(self._held):
            self._send(worker)

    @override
    def undelivered(self) -> int:
        return len(self._held)

    def _send(self, worker: Worker) -> None:
        held, self._held = self._held, []
        if held:
            self.push(worker, *merged(held, worker.client.servers), self._last)
            self.refresh(worker)

    @override
    def flush(self) -> None:
        self._send(self.worker)


class AsyncCarrier(_UnsynchronizedCarrier):
    """A thread sends gradients and fetches parameters while the next batch is computed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting: queue.Queue[Update | None] = queue.Queue(self.options.queue)
        self._sender: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._fresh: list[list[Floats]] | None = None
        self._sent = 0
        self._under_way, self._arrived = 0, threading.Condition()

    @override
    def begin(self) -> None:
        self._keep_pace()
        super().begin()
        self._adopt()

    def _keep_pace(self) -> None:
        """Wait for our own pushes: who runs far ahead of them computes on what it has not learned.

        More than a few under way make nothing faster: they only wait longer.
        """
        limit = max(self.options.unsent, self.options.merge)
        if self.options.bound >= 0:
            limit = min(limit, self.options.bound)
        with self._arrived:
            while not self._arrived.wait_for(lambda: self._under_way <= limit, 0.5):
                self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    @override
    def undelivered(self) -> int:
        return self._under_way

    def _adopt(self) -> None:
        """Take over what the sender fetched; between batches, so that a batch sees one version."""
        fresh, self._fresh = self._fresh, None
        if fresh is not None:
            self.put(fresh)

    @override
    def deliver(self) -> None:
        worker = self.worker
        if self._sender is None:
            # Not the main connection: what is sent here must not hold up the pulls of a forward.
            client = worker.connection()
            self._sender = threading.Thread(
                target=self._run, args=(worker, client), name="sender", daemon=True
            )
            self._sender.start()
        update = (self._dense(), self._sparse()), self.rates()
        self._note_under_way(+1)
        try:
            self._put(update)
        except BaseException:  # Ctrl-C, while it waits for a server: nobody would wait in vain
            self._note_under_way(-1)
            raise
        self.count(worker)

    def _note_under_way(self, change: int) -> None:
        with self._arrived:
            self._under_way += change
            self._arrived.notify_all()

    def _put(self, item: Update | None) -> None:
        while True:
            self._check()
            try:
                return self._waiting.put(item, timeout=0.5)
            except queue.Full:
                continue

    def _run(self, worker: Worker, client: Client) -> None:
        try:
            while (item := self._waiting.get()) is not None:
                items, last = [item], False
                while len(items) < self.options.merge and not self._waiting.empty() and not last:
                    more = self._waiting.get()
                    last = more is None
                    items += [more] if more is not None else []
                self._deliver(worker, client, items)
                self._note_under_way(-len(items))
                if last:
                    return
        except BaseException as error:  # told to the main thread
            self._failure = error
        finally:
            client.close()

    def _deliver(self, worker: Worker, client: Client, items: list[Update]) -> None:
        pushes, rates = [push for push, _ in items], items[-1][1]
        dense, sparse = merged(pushes, client.servers) if len(pushes) > 1 else pushes[0]
        asked, fetched = self.pushes(worker, client, dense, sparse, rates), list[list[Floats]]()
        self._sent += len(items)
        if self._sent >= self.options.refresh and self.groups:
            self._sent = 0
            for group, _ in self.groups:
                fetched.append(group.arrays())
                asked += client.reading(group.table, fetched[-1])
        client.exchange(asked)
        if fetched:
            self._fresh = fetched

    @override
    def flush(self) -> None:
        self.join()
        if self._sender is not None:
            self._put(None)
            self._sender.join()
            self._sender = None
            self._check()
        self._adopt()


def merged(items: list[tuple[Dense, Sparse]], servers: int) -> tuple[Dense, Sparse]:
    """The mean of several batches."""
    share = 1 / len(items)
    dense = [mean(group) for group in zip(*(item[0] for item in items), strict=True)]
    sparse = {}
    for name in items[0][1]:
        each = [item[1][name] for item in items]
        sparse[name] = joined(each, servers, each[0].gradients.shape[1], share)
    return dense, sparse

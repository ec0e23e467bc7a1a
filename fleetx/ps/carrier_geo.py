"""Workers that train copies of their own and exchange differences now and then."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from fleetx.ps.carrier import Carrier
from fleetx.ps.client import Batch
from fleetx.ps.frames import Flag
from fleetx.ps.hashing import Array, Floats
from fleetx.ps.remote_optimizer import RemoteOptimizer, sparse_rule
from fleetx.ps.row_store import Rows
from fleetx.ps.rules import SGD, Rule
from fleetx.ps.sparse_module import SparseModule
from fleetx.ps.sparse_spec import Pace, SparseSpec
from fleetx.ps.sparse_table import SparseTable
from fleetx.ps.worker import Worker


def local_optimizer(cls: type[Optimizer], anchors: set[Tensor]) -> type[RemoteOptimizer]:
    """An optimizer that moves dense parameters here; rows are moved by whom it delivers to."""

    class LocalOptimizer(RemoteOptimizer):
        def __init__(self, params: Any, **options: Any) -> None:
            super().__init__(params, **options)
            groups = [
                {**group, "params": [p for p in group["params"] if p not in anchors]}
                for group in self.param_groups
            ]
            make: Any = cls
            self.inner = make(groups) if any(group["params"] for group in groups) else None
            if self.inner is not None:
                self.state = self.inner.state

        @override
        def step(self, closure: Callable[[], Any] | None = None) -> Any:
            if self.inner is not None:
                for ours, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
                    inner.update({k: v for k, v in ours.items() if k != "params"})
                self.inner.step()
            return super().step(closure)

    LocalOptimizer.__name__ = f"Local{cls.__name__}"
    return LocalOptimizer


class Copies:
    """A worker's own rows of one table since the last exchange."""

    def __init__(self, module: SparseModule, rule: Rule) -> None:
        options = module.options
        self._plain = SparseSpec(name=options.name, dim=options.dim, rule=SGD())
        self.rows = SparseTable(replace(self._plain, rule=rule))
        self.before = SparseTable(self._plain)
        """The same rows as the servers gave them; it knows which ones are fresh."""
        self._lock = threading.Lock()  # rows are also looked up by the thread that fetches ahead

    def missing(self, batch: Batch) -> Array:
        """Which rows of a batch must be asked for."""
        with self._lock:
            return ~self.before.knows(batch.ids)

    def take(self, ids: Array, weights: Floats) -> None:
        """Rows from the servers; the rule's state of old copies stays."""
        with self._lock:
            # Rows that came meanwhile, for another batch, may have been trained since.
            late = ~self.before.knows(ids)
            ids, weights = ids[late], weights[late]
            nothing = np.empty((len(ids), 0), np.float32)
            rows = Rows(ids, weights, nothing, nothing, np.zeros(len(ids), np.int32))
            self.before.put(rows)
            self.rows.put(rows)

    def look_up(self, ids: Array) -> Floats:
        """Copies of rows that were taken."""
        out = np.empty((len(ids), self._plain.dim), np.float32)
        with self._lock:
            self.rows.pull(ids, out, train=True)
        return out

    def train(self, batch: Batch, gradients: Floats, rate: float) -> None:
        """Move the copies; a negative rate leaves it to the rule."""
        with self._lock:
            self.rows.push(batch.ids, gradients, None if rate < 0 else rate, unique=True)

    def changes(self, share: float) -> tuple[Array, Floats]:
        """What was learned since the last exchange, and a new beginning."""
        with self._lock:
            ids = self.before.ids()
            old = np.empty((len(ids), self._plain.dim), np.float32)
            new = np.empty_like(old)
            self.before.pull(ids, old, train=False)
            self.rows.pull(ids, new, train=False)
            self.before = SparseTable(self._plain)
        return ids, (new - old) * np.float32(share)


class GeoCarrier(Carrier):
    """Every ``every`` batches differences go to the servers, divided by the number of workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._copies: dict[str, Copies] = {}
        self._before: list[list[Floats]] = []

    @override
    def pace(self, worker: Worker) -> Pace:
        return Pace()

    @override
    def dense_rule(self, group: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        return "SGD", {"lr": 0.0}  # servers only add differences up

    @override
    def open(self, worker: Worker) -> None:
        super().open(worker)
        self._before = [group.values() for group, _ in self.groups]
        for group in self.optimizer.param_groups:
            for anchor in group["params"]:
                if anchor in self.modules:
                    module = self.modules[anchor]
                    rule = module.options.rule or sparse_rule(self._rule, group)
                    self._copies.setdefault(module.options.name, Copies(module, rule))

    @override
    def lookup(
        self,
        module: SparseModule,
        batch: Batch,
        met: Array | None,
        *,
        train: bool,
        ahead: int | None = None,
    ) -> Floats:
        if not train:
            return super().lookup(module, batch, met, train=train, ahead=ahead)
        worker, copies = self.worker, self._copies[module.options.name]
        if (missing := copies.missing(batch)).any():
            wanted = Batch.of(batch.ids[missing], worker.client.servers)
            client = worker.client if ahead is None else worker.ahead
            fresh = client.pull(worker.table(module.options), wanted)
            copies.take(wanted.ids, fresh)
        return copies.look_up(batch.ids)

    @override
    def refreshed(self, module: SparseModule, batch: Batch, rows: Floats) -> Floats:
        # Meanwhile this worker itself has trained them.
        return self.lookup(module, batch, None, train=True)

    @override
    def deliver(self) -> None:
        worker = self.worker
        for name, gathered in self._sparse().items():
            self._copies[name].train(gathered.batch, gathered.gradients, self.rate(name))
        self.count(worker)
        if self.step % self.terms.every == 0:
            self._exchange(worker)

    def _exchange(self, worker: Worker) -> None:
        share = 1 / worker.workers
        for number, (group, _) in enumerate(self.groups):
            self._exchange_dense(worker, number, group, share)
        for name, copies in self._copies.items():
            ids, delta = copies.changes(share)
            batch = Batch.of(ids, worker.client.servers)
            sorted_ = np.empty_like(delta)
            sorted_[batch.place] = delta
            handle = worker.table(self.tables[name].options)
            worker.client.push(handle, batch, sorted_, delta=True)

    def _exchange_dense(self, worker: Worker, number: int, group: Any, share: float) -> None:
        """Give our share of what we learned, and take over what the others have learned."""
        before = self._before[number]
        now = group.values()
        delta = [(b - a) * np.float32(share) for a, b in zip(before, now, strict=True)]
        worker.client.write(group.handle, delta, flag=Flag.DELTA)
        theirs = group.arrays()
        worker.client.read(group.handle, theirs)
        moved = [t - (a + d) for t, a, d in zip(theirs, before, delta, strict=True)]
        group.put(moved, add=True)
        self._before[number] = theirs

    @override
    def agree(self, flag: Any) -> Any:
        return flag

    @override
    def flush(self) -> None:
        self._exchange(self.worker)

    @override
    def catch_up(self) -> None:
        super().catch_up()  # what is not yet shared of our own steps is let go: all begin alike
        self._before = [group.values() for group, _ in self.groups]

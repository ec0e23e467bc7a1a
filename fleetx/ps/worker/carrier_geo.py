"""Workers that train copies of their own and exchange differences now and then."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.row_source import TableOptions
from fleetx.ps.tables.rules import Rule
from fleetx.ps.tables.sparse_spec import Pace
from fleetx.ps.wire.arrays import Array, Floats
from fleetx.ps.wire.frames import Flag
from fleetx.ps.worker.carrier import Carrier
from fleetx.ps.worker.remote_optimizer import RemoteOptimizer
from fleetx.ps.worker.remote_rows import RemoteRows
from fleetx.ps.worker.row_copies import RowCopies
from fleetx.ps.worker.row_gradients import RowGradients, joined
from fleetx.ps.worker.sparse_module import SparseModule
from fleetx.ps.worker.unbroken import unbroken
from fleetx.ps.worker.worker import Worker


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
                self.inner.state = self.state  # another one, once a state was loaded
                for ours, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
                    inner.update({k: v for k, v in ours.items() if k != "params"})
                    if _fusible(inner):
                        inner["fused"] = True
                self.inner.step()
            return super().step(closure)

    LocalOptimizer.__name__ = f"Local{cls.__name__}"
    return LocalOptimizer


def _fusible(group: Mapping[str, Any]) -> bool:
    """Whether one call can move all tensors of a group on a processor, where torch would loop."""
    chosen = [group.get(name, False) for name in ("foreach", "fused", "differentiable")]
    return chosen == [None, None, False] and all(
        p.is_cpu and p.dtype == torch.float32 and not (p.grad is not None and p.grad.is_sparse)
        for p in group["params"]
    )


class GeoCarrier(Carrier):
    """Every ``every`` batches differences go to the servers, divided by the number of workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._copies: dict[str, RowCopies] = {}
        self._rows: dict[str, RemoteRows] = {}
        self._before: list[list[Floats]] = []
        self._shown: dict[str, list[RowGradients]] = {}
        """Table -> shows and clicks since the last exchange."""

    @override
    def pace(self, worker: Worker) -> Pace:
        return Pace()

    @override
    def dense_rule(self, group: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        return "SGD", {"lr": 0.0}  # servers only add differences up

    @override
    def note_brought(self) -> None:
        """Nothing: parameters are trained here, and what else is written to them is given, too."""

    @override
    def is_remote(self, group: Mapping[str, Any]) -> bool:
        return bool(self._modules_of(group))  # rows move by a rule that is made once

    @override
    def refuse_other_rule(self, table: str, found: Rule, wanted: Rule) -> None:
        """Nothing: each model trains copies of its own, and servers add differences up."""

    @override
    def open(self, worker: Worker) -> None:
        super().open(worker)
        self._before = [group.values() for group, _ in self.groups]
        self._rows.clear()
        self._copies.clear()
        for group in self.optimizer.param_groups:
            for module in self._modules_of(group):
                self._open_copies(worker, module, self.rule(module, group))
        for module in self.modules.values():
            if module.options.rule is not None:  # the optimizer need not have it
                self._open_copies(worker, module, module.options.rule)

    def _open_copies(self, worker: Worker, module: SparseModule, rule: Rule) -> None:
        name = module.options.name
        if name in self._copies:
            return
        rows = RemoteRows(worker, worker.table(module.options))
        if not module.counts_sightings:
            rows.changed_ids()  # from here on
        self._rows[name] = rows
        self._copies[name] = RowCopies(
            module.options.dim,
            rule,
            worker.client.servers,
            counting=module.counts_sightings,
            short=rows.handle.short,
        )

    @override
    def look_up(
        self,
        table: TableOptions,
        batch: IdBatch,
        met: Array | None,
        *,
        train: bool,
        versions: list[int] | None = None,
    ) -> Floats:
        if not train:
            return super().look_up(table, batch, met, train=train, versions=versions)
        self.refuse_thawed(table)
        if not self.joined:
            self.join()
        rows, copies = self._rows[table.name], self._copies[table.name]
        return copies.look_up(batch, rows.pull if versions is None else rows.pull_ahead, met)

    @override
    def refreshed(self, table: TableOptions, batch: IdBatch, rows: Floats) -> Floats:
        # Meanwhile this worker itself has trained them.
        return self.look_up(table, batch, None, train=True)

    @override
    def deliver(self) -> None:
        worker = self.worker
        self.check_options()
        for name, gathered in self._sparse().items():
            self._copies[name].train(gathered.batch, gathered.gradients, self.rate(name))
            if gathered.stats is not None:
                self._shown.setdefault(name, []).append(gathered)
        self.count(worker)
        if self.step % self.options.every == 0:
            self._exchange(worker)

    def _exchange(self, worker: Worker) -> None:
        share = 1 / worker.workers
        for number, (group, _) in enumerate(self.groups):
            self._exchange_dense(worker, number, group, share)
        for name, copies in self._copies.items():
            copies.exchange(self._rows[name], share)
        self._tell_shown(worker)

    def _tell_shown(self, worker: Worker) -> None:
        """Let servers count shows and clicks, by a push that moves nothing."""
        client = worker.client
        with unbroken():
            shown, self._shown = self._shown, {}
            for name, each in shown.items():
                handle = worker.table(self.tables[name].options)
                bare = [replace(one, gradients=np.zeros_like(one.gradients)) for one in each]
                total = joined(bare, client.servers, handle.width)
                client.owe(
                    client.pushing(
                        handle, total.batch, total.gradients, rate=0.0, stats=total.stats
                    )
                )
        client.exchange(())

    def _exchange_dense(self, worker: Worker, number: int, group: Any, share: float) -> None:
        """Give our share of what we learned, and take over what the others have learned."""
        before = self._before[number]
        now = group.values()
        delta = [(b - a) * np.float32(share) for a, b in zip(before, now, strict=True)]
        known = [a + d for a, d in zip(before, delta, strict=True)]
        asked = worker.client.writing(group.table, delta, flag=Flag.DELTA)
        # From here on servers are assumed to know it, and the client sends it whatever happens:
        # what Ctrl-C interrupts, and is exchanged again, is given once.
        with unbroken():
            self._before[number] = known
            worker.client.owe(asked)
        theirs = group.arrays()
        worker.client.read(group.table, theirs)
        news = [t - k for t, k in zip(theirs, known, strict=True)]
        with unbroken():  # else what others learned would be given once more, as ours
            group.put(news, add=True)
            self._before[number] = theirs

    @override
    def agree(self, flag: Any) -> Any:
        return flag

    @override
    def flush(self) -> None:
        self._exchange(self.worker)

    @override
    def catch_up(self) -> None:
        # What is not yet shared of our own steps is let go: all begin alike.
        super().catch_up()
        self._before = [group.values() for group, _ in self.groups]
        for copies in self._copies.values():
            copies.forget()

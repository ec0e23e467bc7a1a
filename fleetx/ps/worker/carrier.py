"""Carries gradients to the servers and fresh parameters back, in step with all other workers."""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.row_source import TableOptions
from fleetx.ps.wire.arrays import Array, Floats, Ids
from fleetx.ps.worker.client import Client
from fleetx.ps.worker.companions import Companions
from fleetx.ps.worker.dense_group import DenseGradients
from fleetx.ps.worker.exchanges import Exchange
from fleetx.ps.worker.row_gradients import RowGradients, joined
from fleetx.ps.worker.table_setup import TableSetup
from fleetx.ps.worker.worker import Worker

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Rates(NamedTuple):
    """The learning rates of an update."""

    groups: list[float]
    """Of the groups of dense parameters."""
    tables: dict[str, float]
    """Table -> its rate; negative where it has a rule of its own."""


class Carrier(TableSetup):
    """Every update waits for all workers: k of them on batches of b are one on batches of k * b."""

    exact_prefetch = True
    """Whether training is the same with and without rows that were fetched ahead."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.step = 0
        """Updates of this model."""
        self._companions = Companions()
        self._told = False

    def begin(self) -> None:
        """Before a forward."""
        self._companions.forget()
        worker = self.worker
        if self.options.bound >= 0:
            step, bound = worker.step, self.options.bound
            done = step - self.undelivered()
            worker.client.call({"method": "tick", "step": step, "done": done, "bound": bound})

    def undelivered(self) -> int:
        """Batches whose gradients the servers do not have yet."""
        return 0

    def set_aside(self) -> None:
        """After a batch that ends in no update: its gradients wait for the one that does."""
        for module in self.tables.values():
            module.set_aside()

    def gather(self) -> None:
        """Before an update: show the gradients of all its batches to whoever looks at gradients."""
        for module in self.tables.values():
            module.bring_back()
        for module in self.modules.values():
            module.refuse_evaluated()
        self._tell_of_rows_that_stay()

    def _tell_of_rows_that_stay(self) -> None:
        """Once, of an update whose rows got nothing while dense parameters did.

        It may be meant: the update of a part that does not reach the rows, as of a discriminator.
        """
        followed = {m.options.name for m in self.modules.values() if m.was_followed}
        if self._told or not followed or any(t.bears_gradients for t in self.tables.values()):
            return
        groups = self.optimizer.param_groups
        if any(p.grad is not None and p.numel() for group in groups for p in group["params"]):
            self._told = True
            logger.warning(
                "rows of %s were looked up to be trained, and this update has gradients of dense "
                "parameters alone: loss.backward() brings gradients to rows, and what "
                "torch.autograd.grad() returns does not. Said once; it is as it should be where "
                "the loss does not depend on the rows.",
                ", ".join(sorted(followed)[:3]),
            )

    def waiting(self) -> dict[str, dict[str, Tensor]]:
        """Table -> what was set aside, as plain data."""
        found: dict[str, dict[str, Tensor]] = {}
        for name, module in self.tables.items():
            if module.waiting:
                total = joined(module.waiting, self.worker.client.servers, module.options.dim)
                arrays = {"ids": total.batch.ids, "gradients": total.gradients}
                arrays |= {} if total.stats is None else {"stats": total.stats}
                found[name] = {k: torch.tensor(v) for k, v in arrays.items()}
        return found

    def wait_again(self, waiting: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Set aside what ``waiting`` told, and nothing else."""
        for name, module in self.tables.items():
            module.clear()
            kept = waiting.get(name)
            module.waiting = [] if kept is None else [self._sorted(kept)]

    def _sorted(self, kept: Mapping[str, Tensor]) -> RowGradients:
        """Rows in the order of these servers, which may be more or fewer than then."""
        batch = IdBatch.of(kept["ids"].numpy(), self._connected().client.servers)
        order = np.argsort(batch.place)
        stats = kept["stats"].numpy()[order] if "stats" in kept else None
        return RowGradients(batch, kept["gradients"].numpy()[order], stats)

    def clear_gradients(self) -> None:
        """After an update that may have been skipped: rows have no gradients any more."""
        for module in self.modules.values():
            module.clear()

    def deliver(self) -> None:
        """Hand over the gradients of one update and fetch what it led to."""
        worker = self.worker
        self.push(worker, self._dense(), self._sparse())
        self.count(worker)
        self.refresh(worker)

    def count(self, worker: Worker) -> None:
        """Note an update."""
        self._companions.forget()
        self.step += 1
        worker.step += 1

    def _dense(self) -> list[DenseGradients]:
        self.check_options()
        self.brought.refuse_written()
        return [group.gradients() for group, _ in self.groups]

    def _sparse(self) -> dict[str, RowGradients]:
        """Table -> its gradients; layers of one table are one."""
        servers = self.worker.client.servers
        return {name: module.take(servers) for name, module in self.tables.items()}

    def push(
        self,
        worker: Worker,
        dense: list[DenseGradients],
        sparse: Mapping[str, RowGradients],
        rates: Rates | None = None,
    ) -> None:
        """Send gradients to the servers, at the rates of now if no others are said."""
        asked = self.pushes(worker, worker.client, dense, sparse, rates or self.rates())
        worker.client.exchange(asked)
        if worker.pace.workers > 0:
            for group, _ in self.groups:
                group.table.advance()
            for name in sparse:
                worker.table(self.tables[name].options).advance()

    def pushes(
        self,
        worker: Worker,
        client: Client,
        dense: list[DenseGradients],
        sparse: Mapping[str, RowGradients],
        rates: Rates,
    ) -> list[Exchange]:
        """What a client asks servers for, to give them these gradients."""
        asked: list[Exchange] = []
        for (group, _), rate, (values, present) in zip(
            self.groups, rates.groups, dense, strict=True
        ):
            handle = group.table
            step = handle.versions
            asked += client.writing(handle, values, rate=rate, step=step, present=present)
        for name, gathered in sparse.items():
            handle = worker.table(self.tables[name].options)
            asked += client.pushing(
                handle,
                gathered.batch,
                gathered.gradients,
                rate=rates.tables[name],
                step=handle.versions,
                everywhere=worker.pace.workers > 0,
                stats=gathered.stats,
            )
        return asked

    def rates(self) -> Rates:
        """The learning rates of now: what is sent later is of this update all the same."""
        given = self.optimizer.param_groups
        groups = [float(given[at]["lr"]) for _, at in self.groups]
        return Rates(groups, {name: self.rate(name) for name in self.tables})

    def agree(self, flag: Tensor) -> Tensor:
        """The largest flag of all workers that update together."""
        worker = self.worker
        found = worker.agree(float(flag.item()), topic="agree")
        return torch.full_like(flag, found)

    def look_up(
        self,
        table: TableOptions,
        batch: IdBatch,
        met: Array | None,
        *,
        train: bool,
        versions: list[int] | None = None,
    ) -> Floats:
        """The rows that a forward needs; ``versions`` are those that a later batch waits for."""
        if train:
            self.refuse_thawed(table)
        worker = self.worker
        handle = worker.table(table)
        if versions is not None:
            return worker.ahead.pull(handle, batch, train=train, step=versions, met=met)
        if not train or met is not None:
            return worker.client.pull(handle, batch, train=train, step=handle.versions, met=met)
        return self._look_up_together(worker, table, batch)

    def refuse_thawed(self, table: TableOptions) -> None:
        """Refuse to train a table that nobody moves, because it was frozen before."""
        if table.name not in self.tables:
            raise RuntimeError(
                f"table {table.name!r} was frozen when the optimizer was made, which does not have "
                "it, and is to be trained now; give the optimizer all of model.parameters(), also "
                "what is thawed later"
            )

    def _look_up_together(self, worker: Worker, table: TableOptions, batch: IdBatch) -> Floats:
        """Rows of a table, and of those that are asked for the same ids after it."""
        if (rows := self._companions.early(table, batch)) is not None:
            return rows
        client, asked, found = worker.client, list[Exchange](), list[Floats]()
        together = [table, *self._companions.of(table)]
        for each in together:
            handle = worker.table(each)
            found.append(np.empty((len(batch.ids), handle.width), np.float32))
            step, train = handle.versions, each is table
            asked += client.pulling(handle, batch, found[-1], train=train, step=step)
        client.exchange(asked)
        for each, rows in zip(together[1:], found[1:], strict=True):
            self._companions.keep(each, rows)
        return found[0]

    def sort_ids(self, ids: Ids) -> IdBatch:
        """The batch of these ids, which several tables may share."""
        return self.worker.sort_ids(ids)

    def fetch_ahead(self, fetch: Callable[..., T], *args: Any) -> Future[T]:
        """Run a fetch for a later batch beside the computation of this one."""
        return self.worker.fetch_ahead(fetch, *args)

    def next_versions(self, table: TableOptions) -> list[int]:
        """The versions of a table that rows for the batch after this one wait for."""
        handle = self.worker.table(table)
        return handle.after() if self.worker.pace.workers else [*handle.versions]

    def outdated(self, table: TableOptions, versions: list[int]) -> bool:
        """Whether rows that were fetched for these versions are not those of the batch at hand.

        They may wait for gradients that are still to come, or lack some that came meanwhile.
        """
        return versions != self.worker.table(table).versions

    def refreshed(self, table: TableOptions, batch: IdBatch, rows: Floats) -> Floats:
        """Rows that were fetched ahead, as they are now that their batch is trained."""
        return rows

    def flush(self) -> None:
        """Let servers know all that was learned here; nothing is left open when it returns."""
        worker = self.worker
        for name, module in self.tables.items():
            versions = worker.table(module.options).versions
            worker.client.call_all(
                [{"method": "await", "table": name, "version": version} for version in versions]
            )

    def catch_up(self) -> None:
        """Take over what the servers hold, whatever this worker knew or was about to use."""
        self._companions.forget()
        for module in self.modules.values():
            module.forget_ahead()
        self.brought.forget()
        self.refresh(self.worker)

    def close(self) -> None:
        """Before the worker leaves."""
        if self._worker is not None:
            self._leaving = True
            self.flush()
        self._worker, self._number, self._offered = None, 0, False
        self._leaving = False
        self.brought.forget()
        self.allow_states()

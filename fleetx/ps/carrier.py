"""How a worker's gradients reach the servers and fresh parameters come back; synchronous form."""

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fleetx.ps.client import Batch, Handle
from fleetx.ps.dense_group import DenseGroup
from fleetx.ps.frames import Flag
from fleetx.ps.hashing import Array, Floats, Ids
from fleetx.ps.remote_optimizer import sparse_rule
from fleetx.ps.rules import Rule
from fleetx.ps.sparse_module import Gathered, SparseModule, joined
from fleetx.ps.sparse_spec import Pace
from fleetx.ps.terms import Terms
from fleetx.ps.worker import Worker, running


class Carrier:
    """Every update waits for all workers: k of them on batches of b are one on batches of k * b."""

    same_ahead = True
    """Whether training does not see that rows were fetched ahead."""

    def __init__(
        self,
        optimizer: Optimizer,
        names: Mapping[Tensor, str],
        modules: list[SparseModule],
        rule: str,
        terms: Terms,
    ) -> None:
        self.optimizer, self.names, self.terms, self._rule = optimizer, names, terms, rule
        self.modules = {module.anchor: module for module in modules}
        self.tables = {module.options.name: module for module in reversed(modules)}
        """Table -> the first layer over it."""
        self.gathered: dict[SparseModule, Gathered] = {}
        self.groups: list[tuple[DenseGroup, dict[str, Any]]] = []
        self.step = 0
        """Updates of this model."""
        self._worker: Worker | None = None
        self._number = 0
        """The how-manieth model of its worker this is; zero before its tables are made."""
        self._opening = threading.Lock()
        self._check_rules()

    def _check_rules(self) -> None:
        """Refuse what rows cannot do now, and not when the tables are made."""
        for group in self.optimizer.param_groups:
            for module in self._modules_of(group):
                if module.options.rule is None:
                    sparse_rule(self._rule, group)

    def _modules_of(self, group: Mapping[str, Any]) -> list[SparseModule]:
        return [self.modules[p] for p in group["params"] if p in self.modules]

    @property
    def worker(self) -> Worker:
        """The connections of this process, joined at the first use."""
        return self._worker or self.join()

    def join(self) -> Worker:
        """Make the tables now; all workers meet there, also one that has no batch."""
        with self._opening:  # a batch may be fetched ahead by another thread
            if self._worker is None:
                found = self._connected()
                self.open(found)
                self._worker = found
            return self._worker

    @property
    def joined(self) -> bool:
        """Whether it has met the other workers."""
        return self._worker is not None

    def prepare(self) -> None:
        """Do what joining takes and nobody waits for, before this worker rests."""
        with self._opening:
            if self._worker is None:
                self._prepare(self._connected())

    @staticmethod
    def _connected() -> Worker:
        found = running()
        if found is None:
            raise RuntimeError(
                "this is a worker of a parameter-server job that is not connected to its servers; "
                "call fleet.init_worker() before the first batch"
            )
        return found

    def open(self, worker: Worker) -> None:
        """Make the tables; worker 0's parameters are those with which all begin."""
        self._prepare(worker)
        offered = worker.agree(float(worker.index == 0), topic="opened", number=self._number)
        if not offered:
            # Worker 0 is gone, or rests. Whoever comes first takes its place if it gave nothing.
            self._offer(worker)
        worker.learn_versions()
        self.refresh(worker)

    def _prepare(self, worker: Worker) -> None:
        if self._number:
            return
        worker.pace = self.pace(worker)
        groups: list[tuple[DenseGroup, dict[str, Any]]] = []
        for group in self.optimizer.param_groups:
            dense = {self.names[p]: p for p in group["params"] if p not in self.modules}
            if dense:
                name = f"dense-{worker.dense_tables}"
                worker.dense_tables += 1
                made = DenseGroup(name, dense, self.terms.split, worker.client.servers)
                made.create(worker.client, *self.dense_rule(group), worker.pace)
                groups.append((made, group))
            self._open_sparse(worker, group)
        self.groups = groups
        worker.carriers.append(self)
        self._number = len(worker.carriers)
        if worker.index == 0:
            self._offer(worker)

    def _offer(self, worker: Worker) -> None:
        """Give the values with which all begin; servers keep those that come first."""
        for group, _ in self.groups:
            worker.client.write(group.table, group.values(), flag=Flag.FIRST)

    def _open_sparse(self, worker: Worker, group: Mapping[str, Any]) -> None:
        for module in self._modules_of(group):
            worker.table(module.options, self.rule(module, group))

    def rule(self, module: SparseModule, group: Mapping[str, Any]) -> Rule:
        """How the rows of a table move."""
        return module.options.rule or sparse_rule(self._rule, group)

    def pace(self, worker: Worker) -> Pace:
        """When pushes become updates on the servers."""
        return Pace(workers=worker.workers)

    def dense_rule(self, group: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """The optimizer that servers run on dense parameters."""
        return self._rule, group

    def begin(self) -> None:
        """Before a forward."""
        worker = self.worker
        if self.terms.bound >= 0:
            step, bound = worker.step, self.terms.bound
            done = step - self.undelivered()
            worker.client.call({"method": "tick", "step": step, "done": done, "bound": bound})

    def undelivered(self) -> int:
        """Batches whose gradients the servers do not have yet."""
        return 0

    def collect(self) -> None:
        """After the backward: show the gradients of rows to whoever looks at gradients."""
        for module in self.modules.values():
            gathered = module.gather(self.worker.client.servers)
            self.gathered[module] = gathered
            module.lend(gathered)

    def put_away(self) -> None:
        """After an update that may have been skipped: rows have no gradients any more."""
        for module in self.gathered:
            if module.anchor.grad is not None:
                module.take_back()
        self.gathered.clear()

    def deliver(self) -> None:
        """Hand over the gradients of one update and fetch what it led to."""
        worker = self.worker
        self.push(worker, self._dense(), self._sparse())
        self.count(worker)
        self.refresh(worker)

    def count(self, worker: Worker) -> None:
        """Note an update."""
        self.step += 1
        worker.step += 1

    def _dense(self) -> list[list[Floats]]:
        return [group.gradients() for group, _ in self.groups]

    def _sparse(self) -> dict[str, Gathered]:
        """Table -> its gradients; layers of one table are one."""
        taken: dict[str, list[Gathered]] = {}
        for module, gathered in self.gathered.items():
            changed = Gathered(gathered.batch, module.take_back(), gathered.stats)
            taken.setdefault(module.options.name, []).append(changed)
        self.gathered.clear()
        servers = self.worker.client.servers
        return {
            name: joined(each, servers, self.tables[name].options.dim)
            for name, each in taken.items()
        }

    def push(
        self, worker: Worker, dense: list[list[Floats]], sparse: Mapping[str, Gathered]
    ) -> None:
        """Send gradients to the servers."""
        rounds, pushed = worker.pace.workers > 0, list[Handle]()
        for (group, options), values in zip(self.groups, dense, strict=True):
            rate, handle = float(options["lr"]), group.table
            worker.client.write(handle, values, rate=rate, step=handle.versions)
            pushed.append(handle)
        for name, gathered in sparse.items():
            handle = worker.table(self.tables[name].options)
            worker.client.push(
                handle,
                gathered.batch,
                gathered.gradients,
                rate=self.rate(name),
                step=handle.versions,
                everywhere=rounds,
                stats=gathered.stats,
            )
            pushed.append(handle)
        if rounds:
            for handle in pushed:
                handle.advance()

    def rate(self, table: str) -> float:
        """The learning rate of a table: the job's, unless the table has a rule of its own."""
        module = self.tables[table]
        if module.options.rule is not None:
            return -1.0
        for group in self.optimizer.param_groups:
            if any(p is module.anchor for p in group["params"]):
                return float(group["lr"])
        raise AssertionError("only tables of the optimizer are moved")

    def refresh(self, worker: Worker, step: int | None = None) -> None:
        """Set the dense parameters to those of the servers, at this version or a later one.

        If none is said, it is the one that our own pushes led to.
        """
        for group, _ in self.groups:
            handle, arrays = group.table, group.arrays()
            worker.client.read(handle, arrays, step=handle.versions if step is None else step)
            group.put(arrays)

    def agree(self, flag: Tensor) -> Tensor:
        """The largest flag of all workers that update together."""
        worker = self.worker
        found = worker.agree(float(flag.item()), topic="agree")
        return torch.full_like(flag, found)

    def lookup(
        self,
        module: SparseModule,
        batch: Batch,
        met: Array | None,
        *,
        train: bool,
        ahead: list[int] | None = None,
    ) -> Floats:
        """The rows that a forward needs; ``ahead`` is the update that a later batch waits for."""
        worker = self.worker
        handle = worker.table(module.options)
        if ahead is not None:
            return worker.ahead.pull(handle, batch, train=train, step=ahead, met=met)
        return worker.client.pull(handle, batch, train=train, step=handle.versions, met=met)

    def sorted(self, ids: Ids) -> Batch:
        """The batch of these ids, which several tables may share."""
        return self.worker.sorted(ids)

    def upcoming(self, module: SparseModule) -> list[int]:
        """The versions of a table that rows for the batch after this one wait for."""
        handle = self.worker.table(module.options)
        return handle.after() if self.worker.pace.workers else [*handle.versions]

    def misfits(self, module: SparseModule, awaited: list[int]) -> bool:
        """Whether rows that were fetched for these versions are not those of the batch at hand.

        They may wait for gradients that are still to come, or lack some that came meanwhile.
        """
        return awaited != self.worker.table(module.options).versions

    def refreshed(self, module: SparseModule, batch: Batch, rows: Floats) -> Floats:
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
        for module in self.modules.values():
            module.forget_ahead()
        self.refresh(self.worker)

    def close(self) -> None:
        """Before the worker leaves."""
        if self._worker is not None:
            self.flush()
        self._worker, self._number = None, 0

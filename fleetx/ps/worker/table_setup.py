"""Before the first batch: servers make the tables, and all workers begin with the same values."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from fleetx.ps.tables.real_numbers import as_real
from fleetx.ps.tables.rules import Rule
from fleetx.ps.tables.sparse_spec import Pace
from fleetx.ps.wire.arrays import Array, Floats
from fleetx.ps.wire.frames import Flag
from fleetx.ps.worker.brought_values import BroughtValues
from fleetx.ps.worker.carrier_options import CarrierOptions
from fleetx.ps.worker.dense_group import DenseGroup, dense_groups, plain_option
from fleetx.ps.worker.exchanges import Exchange
from fleetx.ps.worker.kept_buffers import KeptBuffers
from fleetx.ps.worker.one_table import refuse_merged
from fleetx.ps.worker.remote_optimizer import sparse_rule
from fleetx.ps.worker.sparse_module import SparseModule
from fleetx.ps.worker.worker import Worker, running


class TableSetup:
    """The part of every carrier that makes tables and agrees on their first values."""

    def __init__(
        self,
        optimizer: Optimizer,
        names: Mapping[Tensor, str],
        modules: list[SparseModule],
        rule: str,
        options: CarrierOptions,
        *,
        before_setup: Callable[[Worker, int], None] | None = None,
        model: nn.Module | None = None,
    ) -> None:
        self._before_setup = before_setup
        """Told the worker and the number of this model before its tables are made."""
        self.optimizer, self.names, self.options, self._rule = optimizer, names, options, rule
        given = {p for group in optimizer.param_groups for p in group["params"]}
        moved = [module for module in modules if _is_moved(module, given)]
        self.modules = {module.anchor: module for module in moved}
        self._all = modules
        """Layers whether they are trained or not."""
        refuse_merged(modules, names)
        for module in modules:
            if module.given is not None:
                module.given.refuse_shared(module.options.name, names)
        self.tables = {module.options.name: module for module in reversed(moved)}
        """Table -> the first layer over it."""
        for module in moved:
            module.bears_with(self.tables[module.options.name])
            module.refuse_own_gradient()
        self.groups: list[tuple[DenseGroup, int]] = []
        """Dense parameters -> the place of their group in the optimizer, which loading replaces."""
        self._worker: Worker | None = None
        self._number = 0
        """Of this model among those of its worker, from 1; zero before its tables are made."""
        self._offered = False
        self._initial_options: list[dict[str, Any]] = []
        """The options of the groups with which tables were made."""
        self.brought = BroughtValues(names)
        self._buffers = KeptBuffers(model, given | {module.anchor for module in modules})
        self._leaving = False
        """Whether this is the end of the job."""
        self._sizes: dict[str, dict[str, int]] = {}
        """Group of dense parameters -> how many numbers each has."""
        self._refusing: list[RemovableHandle] = []
        """Who refuses states that are loaded past the servers."""
        self._opening = threading.Lock()
        self.places: dict[str, list[int]] = {}
        """Table -> the groups of the optimizer that have a layer over it and say how rows move."""
        self._check_rules()

    def _check_rules(self) -> None:
        """Refuse what rows cannot do now, and not when the tables are made."""
        asked: dict[str, Rule] = {}
        for at, group in enumerate(self.optimizer.param_groups):
            for module in self._modules_of(group):
                if module.options.rule is not None:
                    continue
                name, rule = module.options.name, sparse_rule(self._rule, initial_options(group))
                self.places.setdefault(name, []).append(at)
                if asked.setdefault(name, rule) != rule:
                    _refuse_two(
                        name, f"the groups of the optimizer ask for {asked[name]} and {rule}"
                    )

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
        """Make the tables without waiting for anybody, before this worker rests."""
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
        for module in self._all:
            module.let_go_of_given(worker.session)  # nobody will offer them any more
        worker.learn_versions()
        self.refresh(worker)
        if self._buffers.exist and (folder := worker.resumed_from):
            self.take_buffers(folder)

    def buffers(self) -> dict[str, Array]:
        """What the model has and no server; nothing before its first batch."""
        return self._buffers.arrays(self._number) if self._number else {}

    def take_buffers(self, folder: str) -> None:
        """Take over those of a save."""
        self._buffers.take_from(folder, self._number)

    def _prepare(self, worker: Worker) -> None:
        if not self._number:
            self._make(worker)
        if worker.index == 0 and not self._offered:
            self._offer(worker)
            self._offered = True

    def _make(self, worker: Worker) -> None:
        if self._before_setup is not None:
            self._before_setup(worker, len(worker.carriers) + 1)
        worker.pace = self.pace(worker)
        groups: list[tuple[DenseGroup, int]] = []
        saved, self._sizes = worker.saved_sizes(), {}
        for at, group in enumerate(self.optimizer.param_groups):
            dense = {self.names[p]: p for p in group["params"] if p not in self.modules}
            if dense:
                name = f"dense-{worker.dense_tables}"
                worker.dense_tables += 1
                self._sizes[name] = {k: as_real(p.detach()).numel() for k, p in dense.items()}
                self.refuse_other_sizes(saved, "fleet.init_server(folder, var_names=['words'])")
                rule, options = self.dense_rule(group)
                for made in dense_groups(name, dense, self.options.split, worker.client.servers):
                    made.create(worker.client, rule, initial_options(options), worker.pace)
                    groups.append((made, at))
            self._open_sparse(worker, group)
        for module in self._all:
            if module.given is not None or module.gave_to_others(worker.session):
                worker.table(module.options)  # which no group has, if it is frozen
        self._refuse_given_away(worker)
        self.groups = groups
        self._initial_options = [_fixed(group) for group in self.optimizer.param_groups]
        self.refuse_states()
        worker.carriers.append(self)
        self._number = len(worker.carriers)

    def _refuse_given_away(self, worker: Worker) -> None:
        """Refuse to let tables begin without the rows that a layer gave to an earlier job."""
        away = {m.options.name for m in self._all if m.gave_to_others(worker.session)}
        if not away:
            return
        answers = worker.client.call_all({"method": "describe"})
        for name in sorted(away):  # which a save may have brought, or these servers never lost
            if not any(answer["tables"].get(name, {}).get("rows") for answer in answers):
                raise RuntimeError(_GIVEN_AWAY.format(repr(name)))

    def check_options(self) -> None:
        """Refuse options that changed since the servers were told: pushes bring rates alone."""
        for at, group in enumerate(self.optimizer.param_groups):
            if not self.is_remote(group):
                continue
            now = _fixed(group)
            for name, before in self._initial_options[at].items():
                if now.get(name) != before:
                    raise ValueError(
                        f"{name} of group {at} of the optimizer was {before!r} when the servers "
                        f"made their tables and is {now.get(name)!r} now, and a push tells them "
                        f"the learning rate and nothing else; leave {name} as it is, in "
                        "schedulers that cycle it with cycle_momentum=False"
                    )

    def is_remote(self, group: Mapping[str, Any]) -> bool:
        """Whether servers run the rule of a group."""
        return True

    def _offer(self, worker: Worker) -> None:
        """Give the values with which all begin; servers keep those that come first."""
        for group, _ in self.groups:
            worker.client.write(group.table, group.values(), flag=Flag.INITIAL)
        client = worker.client
        for module in self._all:
            if (given := module.given) is None:
                continue
            for batch, rows in given.pieces(client.servers):
                client.exchange(
                    client.pushing(worker.table(module.options), batch, rows, initial=True)
                )

    def _open_sparse(self, worker: Worker, group: Mapping[str, Any]) -> None:
        for module in self._modules_of(group):
            rule = self.rule(module, group)
            worker.table(module.options, rule)
            self.refuse_other_rule(module.options.name, worker.rules[module.options.name], rule)

    def refuse_other_rule(self, table: str, found: Rule, wanted: Rule) -> None:
        """Refuse a table whose rows another model of this worker lets move in another way.

        A push brings the rate, so models may differ in that.
        """
        if replace(wanted, lr=found.lr) != found:
            raise ValueError(
                f"rows of table {table!r} move by {found}, as the first model over it has it (or "
                f"has it frozen), and another one asks for {wanted}; a table has one rule. Give "
                "the optimizers of both the same kind and options, all layers over it a rule, "
                "SparseEmbedding(..., rule=fleetx.nn.Adam(0.001)), or the tables different names"
            )

    def rule(self, module: SparseModule, group: Mapping[str, Any]) -> Rule:
        """How the rows of a table move."""
        return module.options.rule or sparse_rule(self._rule, initial_options(group))

    def rate(self, table: str) -> float:
        """The learning rate of a table: the job's, unless the table has a rule of its own."""
        if self.tables[table].options.rule is not None:
            return -1.0
        given = self.optimizer.param_groups
        rates = [float(given[at]["lr"]) for at in self.places[table]]
        if rates.count(rates[0]) < len(rates):
            _refuse_two(table, f"their groups have the learning rates {rates}")
        return rates[0]

    def pace(self, worker: Worker) -> Pace:
        """When pushes become updates on the servers."""
        return Pace(workers=worker.workers)

    def dense_rule(self, group: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """The optimizer that servers run on dense parameters."""
        return self._rule, group

    def refresh(self, worker: Worker, step: int | None = None) -> None:
        """Set the dense parameters to those of the servers, at this version or a later one.

        If none is said, it is the one that our own pushes led to.
        """
        asked: list[Exchange] = []
        fetched = [group.arrays() for group, _ in self.groups]
        for (group, _), arrays in zip(self.groups, fetched, strict=True):
            least = group.table.versions if step is None else step
            asked += worker.client.reading(group.table, arrays, step=least)
        worker.client.exchange(asked)
        self.put(fetched)

    def put(self, fetched: Sequence[Sequence[Floats]]) -> None:
        """Set the dense parameters to what came from the servers."""
        if self._leaving and self.brought.written() is not None:
            return  # nothing comes after it, so what a script wrote last stays
        self.brought.refuse_written()
        for (group, _), arrays in zip(self.groups, fetched, strict=True):
            group.put(arrays)
        self.note_brought()

    def note_brought(self) -> None:
        """Dense parameters are what the servers have, and nobody else writes to them from now."""
        given = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.brought.note(p for p in given if p not in self.modules)

    def refuse_other_sizes(self, saved: Mapping[str, Mapping[str, int]], instead: str) -> None:
        """Refuse a save of a model whose parameters are larger or smaller: it would be cut."""
        for group, sizes in self._sizes.items():
            theirs = saved.get(group, {})
            for name, size in sizes.items():
                if theirs.get(name, size) != size:
                    raise ValueError(
                        f"the save holds parameter {name!r} with {theirs[name]} numbers, and the "
                        f"model has {size}; build the model that was saved, or take the rows of "
                        f"tables alone, by their names: {instead}"
                    )

    def refuse_states(self) -> None:
        """From now on, refuse states of a model whose rows are elsewhere."""
        for module in self.modules.values():
            register: Any = module.register_load_state_dict_pre_hook
            self._refusing.append(register(_refuse_state))

    def allow_states(self) -> None:
        """The job is over."""
        while self._refusing:
            self._refusing.pop().remove()

    @override
    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Copies and pickles of a model come here for where its rows come from."""
        raise TypeError(
            "a model whose tables are on servers cannot be copied or pickled while its job runs: "
            "the rows are not in it. fleet.save_persistables(folder) writes everything, to go on "
            "with; fleet.save_inference_model(folder) writes it for load_inference_model(folder, "
            "Net()), which needs no job"
        )


_GIVEN_AWAY = (
    "table {} was to begin with rows that were given to the servers of an earlier job, and its "
    "layer let go of them; make it anew with SparseEmbedding.from_pretrained(), or begin with a "
    "save of that job: fleet.init_server(folder)"
)


def _refuse_state(module: nn.Module, *_: Any) -> None:
    assert isinstance(module, SparseModule)
    raise RuntimeError(
        f"load_state_dict() was called, and a state holds no rows: those of table "
        f"{module.options.name!r} are on the servers, and would stay as they are, while the next "
        "update would bring back the dense parameters of the servers. To return to earlier "
        "weights, as early stopping does, call fleet.save_persistables(folder) instead of "
        "model.state_dict(), and fleet.load_persistables(folder) on all workers"
    )


def _is_moved(module: SparseModule, given: Collection[Tensor]) -> bool:
    """Whether rows of a layer are trained; one that was left out by mistake is refused."""
    if module.anchor in given:
        return True
    if module.options.rule is None and module.anchor.requires_grad:
        raise ValueError(
            f"the optimizer does not have the parameters of table {module.options.name!r}, whose "
            "rows would have no rule; give it all of model.parameters(), give the table a rule of "
            "its own, SparseEmbedding(..., rule=fleetx.nn.SGD(0.1)), or freeze it with "
            "requires_grad_(False)"
        )
    return module.anchor.requires_grad


def _refuse_two(table: str, found: str) -> NoReturn:
    raise ValueError(
        f"layers over table {table!r} share its rows, which move in one way, and {found}; put the "
        "layers into one group of the optimizer, or give them names of their own"
    )


def initial_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group before any schedule: later pushes bring rates of their own.

    So a worker that is started again from a save has the same tables as the others.
    """
    plain = {name: value for name, value in group.items() if name != "initial_lr"}
    return {**plain, "lr": group.get("initial_lr", group["lr"])}


def _fixed(group: Mapping[str, Any]) -> dict[str, Any]:
    """What servers are told once; numbers that are tensors as they are now."""
    known = (bool, int, float, str, tuple, Tensor)
    free = ("lr", "initial_lr", "max_lr", "min_lr")
    told = {k: v for k, v in group.items() if k not in free and isinstance(v, known)}
    return {k: plain_option(v) for k, v in told.items()}

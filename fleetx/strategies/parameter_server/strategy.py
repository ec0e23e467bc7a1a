"""The synchronous way: all workers push, then the servers make one update."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.counted_gradients import refuse_counted_gradients
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange
from fleetx.plan.facts import (
    ADVICE,
    UNTRAINED,
    differences,
    of_groups,
    of_names,
    of_plan,
    of_values,
)
from fleetx.plan.job import Job
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.option import AtLeast, OneOf
from fleetx.plan.pieces import size_of
from fleetx.plan.share import Share
from fleetx.plan.shared_numbers import refuse_shared_numbers
from fleetx.plan.shortened_rows import refuse_shortened_rows
from fleetx.plan.sparse_gradients import refuse_sparse_gradients
from fleetx.plan.step import Step
from fleetx.plan.strategy import Plan, Strategy
from fleetx.ps.tables.dense_rules import OPTIMIZERS
from fleetx.ps.worker.carrier import Carrier
from fleetx.ps.worker.carrier_geo import GeoCarrier, local_optimizer
from fleetx.ps.worker.carrier_options import CarrierOptions
from fleetx.ps.worker.parameter_split import ParameterSplit
from fleetx.ps.worker.remote_optimizer import RemoteOptimizer
from fleetx.ps.worker.sparse_module import SparseModule
from fleetx.ps.worker.table_setup import initial_options
from fleetx.ps.worker.worker import Worker

logger = logging.getLogger(__name__)

Count = Annotated[int, AtLeast(1)]
"""A whole number from 1."""
SplitMethod = Annotated[str, OneOf(("BySize", "RoundRobin", "HashName"))]

_ELSEWHERE = "the update rule runs on the servers, which have none of that kind."


class ParameterServer(Strategy, name="parameter_server"):
    """The carrier of a job with servers that asks for no other: all workers, then one update."""

    internal = True
    drifts = True
    contract = Contract(
        phase=Phase.CARRIER,
        touches=frozenset({"model", "optimizer", "sync", "ready", "agree", "update"}),
        provides=frozenset({"carrier"}),
        conflicts={
            "lamb": _ELSEWHERE,
            "lars": _ELSEWHERE,
            "sync_batch_norm": "workers meet at the servers only, between two batches.",
        },
        reads=frozenset({"mode"}),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """How dense parameters are spread over the servers."""

        split_method: SplitMethod = "BySize"
        """Servers carry alike, or blocks go to them in turn, or by the name of the parameter."""
        slice_var_up: bool = True
        """Cut large parameters into blocks for several servers."""
        min_block_size: Count = 1024
        """The least numbers in a block."""

    config: Any
    carrier: Carrier | None = None
    _plan: Plan

    @override
    def examine(self, plan: Plan) -> None:
        self._plan = plan
        if plan.options.get("mode") != "ps":
            raise PlanError(
                f"strategy.{self.name} = True speaks of parameter servers, and this job has none. "
                "Start it with fleetrun --server_num 1 --worker_num 2 and fleet.init(), or set "
                f"strategy.{self.name} = False."
            )
        least = option.default(type(self.config), "min_block_size")
        if not self.config.slice_var_up and self.config.min_block_size != least:
            raise PlanError(
                f"min_block_size = {self.config.min_block_size} is the least size of the blocks "
                "into which parameters are cut, and slice_var_up = False cuts none, so it has no "
                f"effect. Set slice_var_up = True, or leave min_block_size at {least}."
            )

    def chosen(self) -> type[Carrier]:
        """How workers exchange."""
        return Carrier

    def carrier_options(self) -> CarrierOptions:
        """The options in the words of the carrier."""
        return CarrierOptions(split=self._split())

    def _split(self) -> ParameterSplit:
        return ParameterSplit(
            method=self.config.split_method,
            slice_var_up=self.config.slice_var_up,
            min_block_size=self.config.min_block_size,
        )

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        if self.chosen() is not GeoCarrier:  # whose workers train copies by torch itself
            refuse_shortened_rows(model, "servers bring weights, and do not hear what it writes")
            refuse_sparse_gradients(model, "servers take whole ones")
        for module in _tables(model):
            module.row_source = self.carrier
        return model

    @override
    def optimizer(self, spec: OptimizerSpec, job: Job) -> OptimizerSpec:
        self._rule = spec.cls
        if self.chosen() is GeoCarrier:
            anchors: set[Tensor] = {module.anchor for module in _tables(job.model)}
            return replace(spec, cls=local_optimizer(spec.cls, anchors))
        if spec.cls not in OPTIMIZERS.values():
            known = ", ".join(sorted(OPTIMIZERS))
            raise PlanError(
                f"the optimizer is {spec.cls.__name__}, and servers update parameters with one of "
                f"{known}. Use one of them, or train copies: strategy.a_sync = True with "
                "a_sync_configs = {'k_steps': 100}."
            )
        return replace(spec, cls=RemoteOptimizer)

    @override
    def step(self, step: Step, job: Job) -> Step:
        assert isinstance(job.optimizer, RemoteOptimizer)
        names: dict[Tensor, str] = {p: name for name, p in job.model.named_parameters()}
        given = [p for group in job.optimizer.param_groups for p in group["params"]]
        refuse_shared_numbers({names[p]: p for p in given}, _PARTED)
        modules = _tables(job.model)
        before_setup = partial(self._before_setup, job.model, job.optimizer, names)
        carrier = self.chosen()(
            job.optimizer,
            names,
            modules,
            self._rule.__name__,
            self.carrier_options(),
            before_setup=before_setup,
            model=job.model,
        )
        self.carrier = carrier
        for module in modules:
            module.row_source = carrier
        job.optimizer.deliver = carrier.deliver

        def sync(armed: bool) -> None:
            step.sync(armed)
            carrier.begin()

        def ready(due: bool) -> bool:
            if due:
                carrier.gather()
            else:
                carrier.set_aside()
            return step.ready(due)

        def update() -> bool:
            try:
                return step.update()
            finally:
                carrier.clear_gradients()

        return replace(step, sync=sync, ready=ready, agree=carrier.agree, update=update)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Gradients of rows that wait for the batch that ends in an update."""
        rows = {} if self.carrier is None else self.carrier.waiting()
        return {"rows": rows} if rows else {}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        assert self.carrier is not None, "there is an optimizer, whose state this is a part of"
        self.carrier.wait_again(state.get("rows", {}))

    def _before_setup(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        names: Mapping[Tensor, str],
        worker: Worker,
        number: int,
    ) -> None:
        """Compare what this worker would train with to what the first one stated.

        Workers come and go, so nobody waits for others here. Rates are those before any schedule:
        who is started again may be elsewhere in it.
        """
        if worker.workers > 1 and self.chosen() is Carrier:
            refuse_counted_gradients(model)
        self._say_unsplit(worker)
        groups = optimizer.param_groups
        facts = of_plan(self._plan) | {"the optimizer": self._rule.__name__}
        facts |= of_groups([initial_options(group) for group in groups])
        facts |= of_names([[names[p] for p in group["params"]] for group in groups])
        facts |= of_values(_untrained(optimizer, names))
        first, theirs = worker.first_facts(f"model {number}", facts)
        here = f"{worker.index}, started again" if first == worker.index else str(worker.index)
        if apart := differences({str(first): theirs, here: facts}):
            seeded = f" {_SEED}" if UNTRAINED in apart else ""
            raise PlanError(f"workers differ where they must agree: {apart}. {ADVICE}{seeded}")

    def _say_unsplit(self, worker: Worker) -> None:
        """How parameters are spread, where there is one server; known when it is met."""
        names = ("split_method", "slice_var_up", "min_block_size")
        kind = type(self.config)
        chosen = [n for n in names if getattr(self.config, n) != option.default(kind, n)]
        if worker.client.servers == 1 and chosen and worker.index == 0:
            flags = [n if self.internal else self.config.spelled(n) for n in chosen]
            logger.warning(
                "At rest: %s, because one server holds all parameters.", ", ".join(flags)
            )

    @override
    def exchanges(self, known: tuple[Exchange, ...], share: Share) -> tuple[Exchange, ...]:
        size = size_of(share.gradients)
        sent = Exchange(
            collective="push to the servers",
            what="gradients",
            when="at each update",
            sent_bytes=size,
            moved_bytes=size,
        )
        return (*known, sent)


_PARTED = (
    "servers keep and move each parameter by itself: what one learned would be written over by the "
    "other at every update"
)
_SEED = (
    "What nobody trains begins alike if all make the model after the same torch.manual_seed(), or "
    "read it from the same file; servers bring what the optimizer has."
)


def _untrained(optimizer: Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """The parameters that the optimizer does not have; those of tables are empty."""
    given = {p for group in optimizer.param_groups for p in group["params"]}
    return {name: p for p, name in names.items() if p not in given and p.numel()}


def _tables(model: nn.Module) -> list[SparseModule]:
    return [module for module in model.modules() if isinstance(module, SparseModule)]

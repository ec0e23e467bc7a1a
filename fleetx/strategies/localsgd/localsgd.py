"""LocalSGD: every worker trains alone, and now and then the parameters are averaged."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from torch import Tensor, nn
from typing_extensions import override

from fleetx.comm.replicas import Drift, average, start_equal
from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange, ring_bytes
from fleetx.plan.job import Job
from fleetx.plan.option import AtLeast
from fleetx.plan.step import Step
from fleetx.plan.strategy import Plan, Strategy
from fleetx.strategies.localsgd.sync_schedule import SyncSchedule


class LocalSGD(Strategy, name="localsgd"):
    """Until update ``begin_step`` workers meet after each update, then after every ``k_steps``."""

    contract = Contract(
        phase=Phase.CARRIER,
        touches=frozenset({"settle"}),
        provides=frozenset({"carrier"}),
        partners=("dp",),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """How often workers meet."""

        k_steps: Annotated[int, AtLeast(1)] = 1
        """Updates between two averagings."""
        begin_step: Annotated[int, AtLeast(1)] = 1
        """Up to this update workers meet after each one."""

    config: Config

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._schedule = SyncSchedule(self.config.begin_step)

    @override
    def examine(self, plan: Plan) -> None:
        if self.config.begin_step > 1 and self.config.k_steps == 1:
            raise PlanError(
                f"localsgd_configs['begin_step'] = {self.config.begin_step} says how long workers "
                "meet after each update, and with localsgd_configs['k_steps'] = 1 they do so for "
                "ever. Set k_steps to 2 or more, or leave begin_step at 1."
            )

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        start_equal(model.to(job.device), job.mesh["dp"].get_group())
        return model

    @override
    def step(self, step: Step, job: Job) -> Step:
        drift = self._drift = Drift(job.model)

        def settle(loss: Tensor | None) -> None:
            step.settle(loss)
            drift.note()
            if self._schedule.after_update(self.config.k_steps) and job.size("dp") > 1:
                average(drift.to_average(), job.mesh["dp"].get_group())

        return replace(step, settle=settle)

    @override
    def exchanges(
        self, known: tuple[Exchange, ...], parameter_bytes: int, mesh: Mapping[str, int]
    ) -> tuple[Exchange, ...]:
        if mesh["dp"] == 1:
            return known
        k = self.config.k_steps
        return (
            *known,
            Exchange(
                collective="all-reduce",
                what="parameters",
                when=f"after every {k} updates" if k > 1 else "after each update",
                sent_bytes=ring_bytes(parameter_bytes, mesh["dp"]),
                decided_by=f"localsgd_configs['k_steps'] = {k}",
            ),
        )

    @override
    def in_step(self) -> bool:
        return self._schedule.just_met

    @override
    def state_dict(self) -> dict[str, Any]:
        return self._schedule.state_dict()

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._schedule.load_state_dict(state)
        self._drift.note_all()

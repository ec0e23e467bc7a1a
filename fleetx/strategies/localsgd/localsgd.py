"""LocalSGD: every worker trains alone, and now and then the parameters are averaged."""

from dataclasses import dataclass, replace
from typing import Annotated

from torch import Tensor
from typing_extensions import override

from fleetx.comm.replicas import Drift, average
from fleetx.plan import option
from fleetx.plan.error import PlanError
from fleetx.plan.job import Job
from fleetx.plan.option import AtLeast
from fleetx.plan.step import Step
from fleetx.plan.strategy import Plan
from fleetx.strategies.localsgd.strategy import LocalStrategy


class LocalSGD(LocalStrategy, name="localsgd"):
    """Until update ``begin_step`` workers meet after each update, then after every ``k_steps``."""

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """How often workers meet."""

        k_steps: Annotated[int, AtLeast(1)] = 1
        """Updates between two averagings."""
        begin_step: Annotated[int, AtLeast(1)] = 1
        """Up to this update workers meet after each one."""

    config: Config

    @override
    def examine(self, plan: Plan) -> None:
        if self.config.begin_step > 1 and self.config.k_steps == 1:
            raise PlanError(
                f"localsgd_configs['begin_step'] = {self.config.begin_step} says how long workers "
                "meet after each update, and with localsgd_configs['k_steps'] = 1 they do so for "
                "ever. Set k_steps to 2 or more, or leave begin_step at 1."
            )

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
    def often(self) -> float | None:
        return 1 / self.config.k_steps

    @override
    def told(self) -> tuple[str, str, str]:
        k = self.config.k_steps
        when = f"after every {k} updates" if k > 1 else "after each update"
        return "parameters", when, f"localsgd_configs['k_steps'] = {k}"

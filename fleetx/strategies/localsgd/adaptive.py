"""Adaptive LocalSGD: the loss and the learning rate decide how long workers train alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from torch import Tensor
from typing_extensions import override

from fleetx.comm.replicas import Drift, average
from fleetx.plan import option
from fleetx.plan.error import PlanError
from fleetx.plan.job import Job
from fleetx.plan.option import AtLeast
from fleetx.plan.step import Step
from fleetx.strategies.localsgd.strategy import LocalStrategy

LONGEST = 16
"""Workers meet at least this often."""


class AdaptiveLocalSGD(LocalStrategy, name="adaptive_localsgd"):
    """Like ``localsgd``, with an interval that follows the mean loss of the workers."""

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """Where the interval starts."""

        init_k_steps: Annotated[int, AtLeast(1)] = 1
        """Updates between two averagings at the start."""
        begin_step: Annotated[int, AtLeast(1)] = 1
        """Up to this update workers meet after each one."""

    beside = 4  # the loss
    config: Config
    _first: tuple[float, float] | None = None
    """Mean loss and learning rate of the first update."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._k = self.config.init_k_steps

    @override
    def step(self, step: Step, job: Job) -> Step:
        drift = self._drift = Drift(job.model)

        def settle(loss: Tensor | None) -> None:
            step.settle(loss)
            drift.note()
            if not self._schedule.after_update(self._k):
                return
            mean = _meet(job, drift, loss)
            assert job.optimizer is not None
            rate = float(job.optimizer.param_groups[0]["lr"])
            if self._first is None:
                self._first = (mean, rate)
            if not self._schedule.beginning:
                self._k = interval(self.config.init_k_steps, self._first, (mean, rate))

        return replace(step, settle=settle)

    @override
    def often(self) -> float | None:
        return None

    @override
    def told(self) -> tuple[str, str, str]:
        when = f"after every 1 to {LONGEST} updates, as the loss decides"
        start = self.config.init_k_steps
        decided_by = f"adaptive_localsgd_configs['init_k_steps'] = {start}"
        return "parameters and the loss", when, decided_by

    @override
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"k": self._k, "first": self._first}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._k = state["k"]
        self._first = None if state["first"] is None else tuple(state["first"])


def interval(k: int, first: tuple[float, float], now: tuple[float, float]) -> int:
    """Updates until the next meeting, from mean loss and learning rate at the start and now."""
    (loss_0, rate_0), (loss, rate) = first, now
    ratio = rate_0 * loss / (rate * loss_0) if rate * loss_0 else math.nan
    # Without a square root, as for a negative loss, workers meet as often as at the start.
    wanted = math.ceil(math.sqrt(ratio * k)) if 0 <= ratio < math.inf else k
    return min(max(wanted, 1), LONGEST)


def _meet(job: Job, drift: Drift, loss: Tensor | None) -> float:
    """Average parameters and loss over the workers; the mean loss is returned."""
    if loss is None:
        raise PlanError(
            "adaptive_localsgd needs the loss to choose its interval, and loss.backward() hides "
            "it; call optimizer.minimize(loss), or optimizer.backward(loss) and optimizer.step()."
        )
    mean = loss.detach().float().reshape(1).clone()
    if job.size("dp") > 1:
        average([mean, *drift.to_average()], job.mesh["dp"].get_group())
    return float(mean)

"""Gradient merge: several batches make one update, and workers exchange once for all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from torch import Tensor
from typing_extensions import override

from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.job import Job
from fleetx.plan.option import AtLeast
from fleetx.plan.run import Run
from fleetx.plan.step import Step
from fleetx.plan.strategy import Strategy
from fleetx.plan.subject import Subject

_MERGED = (2, 4, 8, 16)
"""Batches of an update that `strategy.auto` considers."""


class GradientMerge(Strategy, name="gradient_merge"):
    """Every ``k_steps``-th batch ends in an update; the others only add to the gradients."""

    contract = Contract(
        phase=Phase.CADENCE,
        touches=frozenset({"scale", "due"}),
        provides=frozenset({"cadence"}),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """How many batches, and whether they are summed or averaged."""

        k_steps: Annotated[int, AtLeast(1)] = 1
        """Batches per update."""
        avg: bool = True
        """Average the gradients of the batches; False adds them up."""

    config: Config
    _batches = 0

    @override
    def rests(self) -> Mapping[str, str]:
        if self.config.k_steps > 1:
            return {}
        why = "gradient_merge_configs['k_steps'] = 1 ends every batch in an update"
        return {"strategy.gradient_merge": why}

    @override
    def step(self, step: Step, job: Job) -> Step:
        self._job = job
        if self.rests():
            return step
        share = 1 / self.config.k_steps if self.config.avg else 1.0

        def due() -> bool:
            ready = step.due()
            self._batches += 1
            return ready and self._batches % self.config.k_steps == 0

        def scale(loss: Tensor) -> Tensor:
            return step.scale(loss) * share

        return replace(step, due=due, scale=scale)

    @override
    def remarks(self) -> tuple[str, ...]:
        k = self.config.k_steps
        how = "averaged" if self.config.avg else "added up"
        return (
            f"One update per {k} batches, their gradients {how} "
            f"(gradient_merge_configs['k_steps'] = {k}).",
        )

    @override
    def running(self, run: Run, subject: Subject, mesh: Mapping[str, int]) -> Run:
        return replace(run, batches=run.batches * self.config.k_steps)

    @classmethod
    @override
    def alternatives(cls, subject: Subject, ranks: int) -> Sequence[Mapping[str, Any]]:
        return tuple({"k_steps": count} for count in _MERGED)

    @override
    def batch(self) -> Mapping[str, int]:
        return {"batches": self.config.k_steps}

    @override
    def waiting(self) -> bool:
        return self._batches % self.config.k_steps != 0

    @override
    def state_dict(self) -> dict[str, Any]:
        """The place in the group of batches, and the gradients that wait for its end."""
        if not (batches := self._batches % self.config.k_steps):
            return {}
        held = self._job.model.named_parameters()
        gradients = {name: p.grad.clone() for name, p in held if p.grad is not None}
        return {"batches": batches, "k_steps": self.config.k_steps, "gradients": gradients}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._batches = self._batches_of(state) if state.get("batches") else 0
        parameters = dict(self._job.model.named_parameters())
        for name, gradient in state.get("gradients", {}).items():
            parameters[name].grad = gradient.to(parameters[name].device)

    def _batches_of(self, state: Mapping[str, Any]) -> int:
        """How many batches of a group here are worth what waits.

        Where fewer workers take more batches for one update, or more take fewer, each batch counts
        for less, or for more.
        """
        old, new = state["k_steps"], self.config.k_steps
        batches, rest = divmod(state["batches"] * new, old)
        if old != new and (rest or not self.config.avg):
            raise ValueError(
                f"the checkpoint was written after {state['batches']} of a group of {old} batches, "
                f"and gradient_merge_configs['k_steps'] is {new}, of which that is no whole number "
                f"of batches; set it to {old}, or load a checkpoint from the end of a group."
            )
        return int(batches)

"""The step of a job without any strategy, which strategies then change verb by verb."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fleetx.plan.job import Job
from fleetx.plan.step import Driven, Step


def unscaled(loss: Tensor) -> Tensor:
    """The scale of a job in which nothing scales."""
    return loss


def plain_step(job: Job) -> Step:
    """The step of a job with no strategy at all."""

    def drive(step: Step, batch: Any) -> Driven:
        raise AssertionError("a plan always has one provider of drive")

    def update() -> bool:
        assert job.optimizer is not None
        job.optimizer.step()
        return True

    def unless(flag: Tensor, update: Callable[[], bool]) -> bool:
        # The one place where the host must know what the device found.
        return False if flag.item() else update()

    def evaluate(inputs: Any) -> Any:
        raise AssertionError("a plan always has one provider of drive")

    return Step(
        scale=unscaled,
        drive=drive,
        evaluate=evaluate,
        due=lambda: True,
        sync=lambda armed: None,
        reduce=None,
        ready=lambda due: True,
        resume=lambda: None,
        agree=lambda flag: flag,
        total=lambda number: number,
        unless=unless,
        update=update,
        settle=lambda loss: None,
    )

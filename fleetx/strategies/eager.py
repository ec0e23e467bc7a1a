"""Eager: forward and backward run on this rank, one after the other."""

from dataclasses import replace
from typing import Any

from typing_extensions import override

from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.job import Job
from fleetx.plan.step import Driven, Step
from fleetx.plan.strategy import Strategy


class Eager(Strategy, name="eager"):
    """The drive of a job that asks for no other; it has no switch."""

    internal = True
    contract = Contract(
        phase=Phase.DRIVE,
        touches=frozenset({"drive", "evaluate"}),
        provides=frozenset({"drive"}),
    )

    @override
    def step(self, step: Step, job: Job) -> Step:
        def drive(step: Step, batch: Any) -> Driven:
            if job.criterion is None:
                raise PlanError(
                    "a whole batch was given to train, but no criterion turns outputs into a loss; "
                    "call fleet.distributed_model(model, criterion=...), or write the loop with "
                    "optimizer.minimize(loss)."
                )
            inputs, targets = batch
            outputs = job.call(inputs)
            loss = job.criterion(outputs, targets)
            kept = [outputs] if job.keep_outputs else ()
            del outputs  # scores of many words are large, and backward may do without them
            step.scale(loss).backward()
            return Driven(loss.detach(), kept)

        return replace(step, drive=drive, evaluate=job.call)

"""How a batch flows through the stages of all ranks."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fleetx.plan.job import Job
from fleetx.plan.own_hooks import OwnHooks
from fleetx.plan.step import Drive, Driven, Step
from fleetx.strategies.pipeline.accepted_inputs import Accepted
from fleetx.strategies.pipeline.micro_batches import bound, criterion_of, samples_in, shares
from fleetx.strategies.pipeline.stages import Stages
from fleetx.strategies.pipeline.tied_weights import Homes
from fleetx.strategies.pipeline.whole_means import WholeMeans


class Flow:
    """Trains and evaluates batches, each in micro-batches.

    Args:
        job: what is trained.
        stages: those of this rank.
        homes: where tied weights are counted.
        accepted: the inputs that the stages take.
        counted: samples of a batch -> how many parts it is cut into.
    """

    def __init__(
        self,
        job: Job,
        stages: Stages,
        homes: Homes,
        accepted: Accepted,
        counted: Callable[[int], int],
    ) -> None:
        self._job, self._stages, self._homes = job, stages, homes
        self._accepted, self._counted = accepted, counted
        self._hooks = OwnHooks(job.model, "one micro-batch, of which a batch has several")
        self._means = WholeMeans(job)
        self.armed = True
        """Whether the coming batch ends in an update."""

    def drive(self) -> Drive:
        """Forward and backward of a batch."""
        job = self._job
        alone = job.size("pp") == job.mesh.size()
        return self._train if alone else _told_to_others(self._train, job)

    def _train(self, step: Step, batch: Any) -> Driven:
        job = self._job
        inputs, targets = batch
        count, criterion = self._counted(samples_in(inputs)), criterion_of(job)
        wanted, due = shares(targets, count), self.armed
        means = self._means.batch(wanted)
        kept: list[Any] = []

        def scaled(outputs: Any, number: int) -> tuple[Tensor, Tensor]:
            with means.of(number):
                loss = criterion(outputs, wanted[number])
            if job.keep_outputs:
                kept.append(outputs)
            return loss, step.scale(loss / count)

        loss = self._stages.train(
            self._inputs(inputs),
            count,
            scaled,
            before_backward=lambda last: step.sync(due and last),
        )
        if due:
            self._homes.add_up()
        self._hooks.tell()
        self._means.end(means, lambda: shares(inputs, count))
        return Driven(loss, kept)

    def evaluate(self, inputs: Any, planned: int) -> Any:
        """The outputs for a batch, in as many parts as are planned where it can be cut so."""
        count = planned if samples_in(inputs) % planned == 0 else 1
        return self._stages.evaluate(self._inputs(inputs), count)

    def _inputs(self, inputs: Any) -> dict[str, Any]:
        """The inputs of a batch by name, all of which the stages take."""
        found = bound(self._job.model, inputs)
        self._accepted.check(found)
        return found


def _told_to_others(flow: Drive, job: Job) -> Drive:
    """Let the pipelines that update with this one stop where it fails, on all its ranks."""

    def drive(step: Step, batch: Any) -> Driven:
        try:
            driven = flow(step, batch)
        except Exception:
            if not is_shared(job):  # else others wait inside of the batch and cannot hear it
                job.anywhere(True)
            raise
        if job.anywhere(False):
            raise RuntimeError(
                "this batch failed in another pipeline, with which this one exchanges gradients, "
                "so all of them stop; the workers of that one say why."
            )
        return driven

    return drive


def is_shared(job: Job) -> bool:
    """Whether several ranks compute one stage together and exchange within it."""
    return job.size("tp") * job.size("sharding") > 1

"""One training step, as a record of verbs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future

from fleetx.comm.replicas import copy_from_first_rank

Reduce = Callable[[GradBucket], Future[Tensor]]


@dataclass(frozen=True)
class Driven:
    """What comes out of the forward and backward of one batch."""

    loss: Tensor
    """The plain loss, without its graph."""

    outputs: Sequence[Any] = ()
    """The outputs of the model, once for each micro-batch that this rank computed to its end;
    nothing unless the job keeps outputs."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A strategy changes training by replacing the verbs it cares about."""

    scale: Callable[[Tensor], Tensor]
    """Loss -> the scalar to differentiate."""

    drive: "Drive"
    """Run forward and backward for one batch, leaving ``.grad``."""

    evaluate: Callable[[Any], Any]
    """The outputs for the inputs of one batch, on every rank; called without gradients."""

    due: Callable[[], bool]
    """Count one batch; does it end in an update?"""

    sync: Callable[[bool], None]
    """Arm or hold the reduction of the coming backward; called before the forward."""

    reduce: Reduce | None
    """One bucket of local gradients -> the same bucket agreed between replicas.

    None is the carrier's own reduction, which runs without a detour through Python.
    """

    ready: Callable[[bool], bool]
    """After a backward, told whether its batch ends in an update: let the gradients that can be
    seen be true ones, and those of an update agreed upon. False while some are still to come."""

    resume: Callable[[], None]
    """Before another backward adds to gradients that were made ready."""

    agree: Callable[[Tensor], Tensor]
    """One flag of this rank (a tensor of one number) -> the largest of all ranks that update
    together; what a rank decides by it, all of them decide."""

    total: Callable[[Tensor], Tensor]
    """A sum over this rank's own parameters -> over those of all ranks that hold others of the
    same model, in place or not. A tensor that is spread over ranks counts whole on each."""

    unless: Callable[[Tensor, Callable[[], bool]], bool]
    """Call an update unless a flag on the device (a tensor of one number) is set; False when it
    was skipped. Who may not ask the device, takes the update back there instead."""

    update: Callable[[], bool]
    """Move the parameters; False when the update was skipped."""

    settle: Callable[[Tensor | None], None]
    """After every batch that was due, with its loss, even if this rank skipped the update: what
    ranks do together here must not depend on what one of them skipped."""


Drive = Callable[[Step, Any], Driven]


def with_equal_buffers(step: Step, model: nn.Module, group: dist.ProcessGroup) -> Step:
    """Let running statistics be those of the group's first rank after each update, everywhere.

    One worker alone can then evaluate or save at any time. A part of the update, a skipped one too,
    and not of what comes after it: what an update always does can be recorded with it.
    """
    if next(model.buffers(), None) is None:
        return step

    def update() -> bool:
        moved = step.update()
        copy_from_first_rank(model.buffers(), group)
        return moved

    return replace(step, update=update)


def largest_over(
    agree: Callable[[Tensor], Tensor], group: dist.ProcessGroup
) -> Callable[[Tensor], Tensor]:
    """The verb ``agree`` of a step whose ranks update together with those of the group, too."""

    def agreed(flag: Tensor) -> Tensor:
        flag = agree(flag).detach().clone()
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
        return flag

    return agreed

"""What sharding cannot do with gradients: add up those of different parameters, call hooks."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch.distributed as dist
from torch import Tensor, nn

from fleetx.comm.reached import Reached
from fleetx.plan.error import PlanError
from fleetx.plan.job import Job
from fleetx.plan.step import Step
from fleetx.strategies.sharding.same_missing import same_on_all
from fleetx.torch_internals import has_tensor_hooks

_UNUSED = (
    "the last batch gave no gradient to {}, and where workers reach different parameters, sharding "
    "would add gradients of one to those of another; freeze what no batch reaches, or set "
    "strategy.find_unused_parameters = True, which compares in each update whether all workers "
    "leave out the same parameters."
)
_DIFFERENT = (
    "this worker's last batch left out {}, and those of other workers left out others, so sharding "
    "added gradients of one parameter to those of another; let all workers reach the same "
    "parameters (compute both branches and multiply one by 0), or set strategy.sharding = False, "
    "because data parallel can do this with strategy.find_unused_parameters = True."
)
_HOOKED = (
    "{!r} has a hook of register_hook(), which sharding never calls, because gradients are put "
    "into .grad past autograd once workers have added them up; use "
    "register_post_accumulate_grad_hook(), which finds in .grad what this worker holds of the "
    "gradient, or set strategy.sharding = False."
)


def checked(step: Step, job: Job, group: dist.ProcessGroup) -> Step:
    """Refuse gradients of batches that reached other parameters on other ranks, and hooks.

    What a unit exchanges is the gradients that it has, one after the other, so one rank's gradient
    of one parameter would be added to another rank's of the next.
    """
    reached = Reached(job.model.parameters(), frozen=True)  # one may be thawed later
    trouble = partial(_trouble, reached, job, group)
    parameters = [*job.model.named_parameters()]
    noted = ""

    def check() -> None:
        nonlocal noted
        noted = noted or trouble() or _hooked(parameters)
        told, noted = job.hindrance(noted), ""
        if told:
            raise PlanError(told)

    def due() -> bool:
        nonlocal noted
        if reached and job.size("pp") > 1:  # a stage may have been reached that others were not
            noted = noted or trouble()
        elif reached:  # by a batch that ended without an update
            check()
        return step.due()

    def update() -> bool:
        check()
        return step.update()

    return replace(step, due=due, update=update)


def _trouble(reached: Reached, job: Job, group: dist.ProcessGroup) -> str:
    """What is wrong with the parameters that batches since the last look have left out."""
    missing, may_miss = reached.missing(), job.option("find_unused_parameters", bool)
    reached.forget()
    told = ", ".join(_names(job.model, missing[:3])) if missing else "nothing"
    if missing and not may_miss:
        return _UNUSED.format(told)
    if may_miss and not same_on_all(reached, missing, group, job.device):
        return _DIFFERENT.format(told)
    return ""


def _hooked(parameters: Sequence[tuple[str, Tensor]]) -> str:
    return next((_HOOKED.format(name) for name, p in parameters if has_tensor_hooks(p)), "")


def _names(model: nn.Module, parameters: Sequence[Tensor]) -> list[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [repr(names[id(parameter)]) for parameter in parameters]

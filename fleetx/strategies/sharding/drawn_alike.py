"""Numbers that a script draws into parts of spread parameters: ``p.to_local().normal_()``.

Each worker's generator fills its part: with the same seed all parts are the same, and the whole
parameter repeats itself. What is drawn into the parameter is drawn for the whole of it.
"""

import itertools
import json
from collections.abc import Collection
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from fleetx.comm.held_gradients import records
from fleetx.comm.local import local
from fleetx.comm.same_numbers import print_of
from fleetx.plan.error import PlanError
from fleetx.plan.job import Job
from fleetx.plan.step import Step
from fleetx.roles.session import started, world
from fleetx.torch_internals import fsdp_kept

_ALIKE = (
    "workers {} and {} hold the same numbers in their parts of the parameter {!r}, which therefore "
    "repeats itself: what is drawn into p.to_local() is drawn for the part that strategy.sharding "
    "= True has left here, and each worker's generator begins with the same seed. Draw into the "
    "parameter, nn.init.normal_(p), which gives the numbers of a plain run; or load whole ones "
    "with fleet.load_full_state_dict(model, state)."
)
_models = itertools.count()
"""Models that were spread: all workers lay them out in the same order."""


def repeating(model: nn.Module, ranks: int) -> set[str]:
    """Parameters of a whole model whose parts will be the same, as tables that were made longer."""
    return {name for name, p in model.named_parameters() if _repeats(p, ranks)}


@torch.no_grad()
def _repeats(parameter: Tensor, ranks: int) -> bool:
    # What lies here of one that is cut over ranks: torch would compare whole ones with all workers,
    # and stages have other numbers of parameters.
    here = local(parameter)
    if here.device.type != "cpu" or not here.dim() or here.shape[0] % ranks:
        return False
    first, *others = here.chunk(ranks)
    return all(torch.equal(first, other) for other in others)


def refuse_drawn_alike(step: Step, job: Job, before: Collection[str]) -> Step:
    """Look once, before the first update; what repeated itself ``before`` may go on to."""
    barrier = world("distributed_optimizer").barrier if started() else None
    if barrier is None or job.device.type != "cpu" or job.size("sharding") == 1:
        return step
    others = [str(job.mesh.get_local_rank(axis)) for axis in ("pp", "dp", "tp")]
    topic, looked = "/".join(["drawn", str(next(_models)), *others]), False

    def look() -> None:
        parts = {name: local(fsdp_kept(record)) for name, record in records(job.model)}
        prints = {name: _print(part) for name, part in parts.items() if name not in before}
        own = json.dumps([barrier.index, prints])
        worker, said = json.loads(barrier.first_said(topic, own))
        alike = [name for name, found in prints.items() if found and said.get(name) == found]
        if worker != barrier.index and alike:
            raise PlanError(_ALIKE.format(worker, barrier.index, alike[0]))

    def update() -> bool:
        nonlocal looked
        if not looked:
            looked = True
            job.together(partial(look))
        return step.update()

    return replace(step, update=update)


def _print(part: Tensor) -> list[float]:
    """What stands for the numbers of a part; nothing for a constant."""
    if part.is_meta or not part.numel() or bool((part == part.reshape(-1)[0]).all()):
        return []
    return [float(number) for number in print_of(part)]

"""Actions that all workers take, such as laying out a model: they fail on all or on none."""

import contextlib
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from fleetx.plan.error import PlanError
from fleetx.roles.session import started, world

Result = TypeVar("Result")


def all_or_none(action: Callable[[], Result]) -> Result:
    """Do it, as every worker does; if it raises on one of them, it raises on all.

    A worker that raises does not wait for the others: one of them may be inside of the action, in a
    collective that will never end. All others learn what happened instead of going on to wait for
    a worker that is gone. (``io.agreement.together`` waits for all even then, which only actions
    without collectives may.)
    """
    barrier = world("all_or_none").barrier if started() else None
    if barrier is None or barrier.size == 1:
        return action()
    try:
        result = action()
    except Exception as error:
        with contextlib.suppress(dist.DistError):  # worker 0 is gone; what went wrong here counts
            barrier.report(f"{type(error).__name__}: {error}")
        raise
    try:
        trouble = barrier.trouble()
    except dist.DistError as error:
        raise PlanError(
            "another worker did not come, or worker 0 is gone, while all of them did the same, "
            "such as laying out a model; look at the logs of the others."
        ) from error
    if trouble:
        raise PlanError(f"all workers stop, because one cannot go on. {trouble}")
    return result

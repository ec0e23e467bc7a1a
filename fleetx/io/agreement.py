"""Actions of all workers that succeed everywhere or fail everywhere."""

from collections.abc import Callable
from typing import TypeVar

from fleetx import roles
from fleetx.roles.worker_util import util

Result = TypeVar("Result")


class CheckpointError(ValueError):
    """A checkpoint cannot be written or read, on this worker or on another one."""


def together(action: Callable[[], Result], *, first_only: bool = False) -> Result | None:
    """Do it on every worker, or on the first; a failure of one is raised by all.

    It is a barrier too, after a failure as well, which ``plan.all_or_none`` is not: these actions
    wait for nobody inside, and what others still write must be complete before it is cleared away.
    """
    result, failure = None, None
    try:
        if roles.is_first_worker() or not first_only:
            result = action()
    except Exception as error:  # whatever it is, the others must hear of it
        failure = error
    said = util.all_gather("" if failure is None else f"{type(failure).__name__}: {failure}")
    if failure is not None:
        raise failure
    for worker, text in enumerate(said):
        if text:
            raise CheckpointError(f"worker {worker} failed, so all stop: {text}")
    return result

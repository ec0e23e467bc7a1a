"""Actions of all workers that succeed everywhere or fail everywhere."""

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from fleetx import roles
from fleetx.roles.messages import gather_bytes
from fleetx.roles.worker_util import util

Result = TypeVar("Result")


class CheckpointError(ValueError):
    """A checkpoint cannot be written or read, on this worker or on another one."""


def together(action: Callable[[], Result], *, first_only: bool = False) -> Result | None:
    """Do it on every worker, or on the first; a failure of one is raised by all.

    It is a barrier too, after a failure as well, which ``plan.all_or_none`` is not: these actions
    wait for nobody inside, and what others still write must be complete before it is cleared away.
    """
    result, failure = _tried(action, roles.is_first_worker() or not first_only)
    _raise(failure, util.all_gather(_told(failure)))
    return result


def together_in(
    group: dist.ProcessGroup | None, action: Callable[[], Result], *, first_only: bool = False
) -> Result | None:
    """The same among the members of a group of its own, in a thread beside the training."""
    first = group is None or dist.get_rank(group) == 0
    result, failure = _tried(action, first or not first_only)
    said = [_told(failure)]
    if group is not None:
        said = [text.decode() for text in gather_bytes(said[0].encode(), group)]
    _raise(failure, said)
    return result


def _tried(
    action: Callable[[], Result], takes_part: bool
) -> tuple[Result | None, Exception | None]:
    try:
        return (action() if takes_part else None), None
    except Exception as error:  # whatever it is, the others must hear of it
        return None, error


def _told(failure: Exception | None) -> str:
    return "" if failure is None else f"{type(failure).__name__}: {failure}"


def _raise(failure: Exception | None, said: list[str]) -> None:
    if failure is not None:
        raise failure
    for worker, text in enumerate(said):
        if text:
            raise CheckpointError(f"worker {worker} failed, so all stop: {text}")

"""``fleet.first_worker_first``: one worker downloads, the others find what it left."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

from fleetx.expected import FLAG, expect
from fleetx.roles.barrier import LONGEST_ACTION, Barrier
from fleetx.roles.session import world
from fleetx.roles.worker_util import worker_identity


@contextmanager
def first_worker_first(*, per_machine: bool = False) -> Iterator[None]:
    """Worker 0 runs the block first; the others begin it when worker 0 has left it.

    If the block raises on worker 0, the others do not enter it and raise, too. All workers must
    come here.

    Args:
        per_machine: the first worker of each machine goes first, for files on disks of their own.
    """
    call = "fleet.first_worker_first"
    expect(call, "per_machine", per_machine, FLAG)
    found, barrier = worker_identity("first_worker_first"), world("first_worker_first").barrier
    if found.worker_num == 1 or barrier is None:
        yield
        return
    leads = found.local_rank == 0 if per_machine else found.index == 0
    leaders = found.node_num if per_machine else 1
    if not leads:
        _follow(barrier, call, leaders)
        yield
        return
    try:
        yield
    except BaseException as error:
        barrier.lead(f"worker {found.index}: {type(error).__name__}: {error}", leaders)
        raise
    barrier.lead("", leaders)


def _follow(barrier: Barrier, call: str, leaders: int) -> None:
    try:
        trouble = barrier.follow(f"{call}()", leaders)
    except dist.DistError as error:
        raise RuntimeError(
            f"{call}() waited for the worker that goes first, which is gone or took longer than "
            f"{LONGEST_ACTION}; look at its log."
        ) from error
    if trouble:
        raise RuntimeError(f"{call}() failed where it went first, so all stop. {trouble}")

"""Workers that record and replay exchanges do so together, or none does."""

import hashlib
import logging
from collections.abc import Hashable
from enum import IntEnum

import torch
import torch.distributed as dist

logger = logging.getLogger(__name__)


class Stage(IntEnum):
    """How far a worker is with one kind of batch; the largest number of all workers counts."""

    CAPTURED = 0
    READY = 1  # for being captured
    USUAL = 2  # runs as without graphs


class Agreement:
    """Decides with the other workers, batch by batch, how the coming one runs.

    An exchange that was captured may run another algorithm than the same one launched by the host
    (NCCL registers the memory of captured ones with all workers), so those of one batch are all
    captured or all not. It is asked on the host, one small message for each batch, while the card
    still works on the batch before.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        """Agree within a group whose tensors lie on the host; None for a worker alone."""
        self._group, self._warned = group, False

    def decided(self, kind: Hashable, own: Stage) -> Stage:
        """What all workers do with the coming batch.

        Args:
            kind: of this worker's batch, the same in all processes for the same kind.
            own: how far this worker is with it.
        """
        if self._group is None:
            return own
        number = _number(kind)
        told = torch.tensor([number, -number, int(own)])
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self._group)
        largest, negative_smallest, stage = told.tolist()
        if largest == -negative_smallest:
            return Stage(stage)
        if not self._warned:
            logger.warning(
                "cuda_graph: workers got batches of different kinds (shapes, or parameters that "
                "are trained), and such batches run uncaptured on all of them; give all workers "
                "batches of one shape, with drop_last=True or by padding"
            )
        self._warned = True
        return Stage.USUAL


def _number(kind: Hashable) -> int:
    """The same for the same kind in every process, where hash() is not."""
    return int.from_bytes(hashlib.blake2b(repr(kind).encode(), digest_size=7).digest(), "big")

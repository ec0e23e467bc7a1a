"""An all-gather that goes on while the caller does something else."""

import torch.distributed as dist
from torch import Tensor
from torch.cuda import current_stream
from torch.futures import Future

from fleetx.comm import collective_names


def gather_later(whole: Tensor, part: Tensor, group: dist.ProcessGroup) -> Future[Tensor]:
    """What will hold the parts of all ranks, one after the other in ``whole``."""
    work = collective_names.all_gather_single(whole, part, group=group, async_op=True)
    assert work is not None

    def arrived(_: Future[None]) -> Tensor:
        # torch keeps what it sends until it was sent, but for work that is recorded: its memory
        # would be given to the next tensor. This function's stream waits for the exchange, so
        # memory that the stream uses is free after it.
        if part.is_cuda:
            part.record_stream(current_stream(part.device))
        return whole

    future: Future[Tensor] = work.get_future().then(arrived)
    return future

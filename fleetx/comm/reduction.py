"""Ways to average a buffer over ranks: at once, or in two levels."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from fleetx.comm import pairwise

Average = Callable[[Tensor], Future[Tensor]]
"""A buffer of this rank -> the same buffer, once it holds the mean of all ranks."""


def flat(group: dist.ProcessGroup, wire: torch.dtype | None) -> Average:
    """One all-reduce over all ranks."""
    size = dist.get_world_size(group)

    def average(buffer: Tensor) -> Future[Tensor]:
        sent = _share(buffer, size, wire)
        work = dist.all_reduce(sent, group=group, async_op=True)
        assert work is not None
        return _then(work.get_future(), buffer, sent)

    return average


def two_level(
    inner: dist.ProcessGroup, outer: dist.ProcessGroup, wire: torch.dtype | None
) -> Average:
    """Scatter the sum among neighbours, add up between blocks, gather among neighbours.

    Between blocks, where the network is slow, each rank then sends its share of the buffer only.
    """
    near, size = dist.get_world_size(inner), dist.get_world_size(inner) * dist.get_world_size(outer)

    def average(buffer: Tensor) -> Future[Tensor]:
        sent = _padded(_share(buffer, size, wire), near)
        part = sent.new_empty(sent.numel() // near)
        pairwise.reduce_scatter(part, sent, inner)
        dist.all_reduce(part, group=outer)
        return _then(pairwise.all_gather(sent, part, inner), buffer, sent)

    return average


def dealt(
    averages: Sequence[Average], counted: Callable[[int], None]
) -> Callable[[Any], Future[Tensor]]:
    """Buckets to averages in turn.

    Args:
        averages: one for each communicator.
        counted: told once how many buckets there are. DDP cuts them anew after the first backward,
            so it is told in the second.
    """
    rounds = 0

    def reduce(bucket: Any) -> Future[Tensor]:
        nonlocal rounds
        if bucket.is_last():
            rounds += 1
            if rounds == 2:
                counted(bucket.index() + 1)
        average: Average = averages[bucket.index() % len(averages)]
        return average(bucket.buffer())

    return reduce


def _share(buffer: Tensor, size: int, wire: torch.dtype | None) -> Tensor:
    """This rank's part of the mean; divided before it is rounded, so the sum stays in range."""
    return buffer.div(size).to(_format(buffer, wire))


def _format(gradient: Tensor, wire: torch.dtype | None) -> torch.dtype:
    """The format in which a gradient travels: only float32 is narrowed.

    The range of the others may be wider than the wire's.
    """
    return wire if wire is not None and gradient.dtype == torch.float32 else gradient.dtype


def _padded(sent: Tensor, multiple: int) -> Tensor:
    missing = -sent.numel() % multiple
    return torch.nn.functional.pad(sent, (0, missing)) if missing else sent


def _then(arrives: Future[Any], buffer: Tensor, received: Tensor) -> Future[Tensor]:
    # The function holds what travels until it has arrived. On a GPU torch runs it under streams
    # that wait for the collective, and whoever waits for the future waits for the copy.
    future: Future[Tensor] = arrives.then(lambda done: buffer.copy_(received[: buffer.numel()]))
    return future

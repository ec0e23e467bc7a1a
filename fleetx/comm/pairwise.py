"""All-gather and reduce-scatter of gloo at the speed of the link, from messages between two ranks.

gloo's reduce-scatter is an all-reduce of which most is thrown away: it sends twice what it has to.
And a message goes out when the other side has said that it waits for it. Two ranks that gather send
first and say so then, so that the later one says it behind all that it sends itself, and the link
carries one way after the other. Here every rank says first what it waits for, and then sends.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from fleetx.comm import collective_names
from fleetx.comm.gathering import gather_later


def is_gloo(device: torch.device, group: dist.ProcessGroup) -> bool:
    """Whether tensors of this device travel through gloo, from memory of the host."""
    return device.type == "cpu" and "cpu:gloo" in dist.get_backend_config(group).split(",")


def all_gather(whole: Tensor, part: Tensor, group: dist.ProcessGroup) -> Future[Tensor]:
    """The parts of all ranks, one after the other in ``whole``.

    More than two ranks are a ring, in which nobody sends to where it receives from: gloo's own is
    as fast as the link. Two wait for each other here, since messages of gloo have no futures.
    """
    if dist.get_world_size(group) == 2 and is_gloo(part.device, group):
        gather_two(whole, part, group)
        here: Future[Tensor] = Future()
        here.set_result(whole)
        return here
    return gather_later(whole, part, group)


def reduce_scatter(part: Tensor, whole: Tensor, group: dist.ProcessGroup) -> None:
    """This rank's part of the sum of ``whole`` over the ranks, which wait for it."""
    if is_gloo(whole.device, group):
        sum_rows(part, whole, group)
    else:
        collective_names.reduce_scatter_single(part, whole, group=group)


def gather_two(whole: Tensor, part: Tensor, group: dist.ProcessGroup) -> None:
    """The parts of two ranks, of which this rank's may lie in its place already."""
    rows, own = list(whole.view(2, -1)), part.reshape(-1)
    _exchange([own, own], rows, group)
    here = rows[dist.get_rank(group)]
    if here.data_ptr() != own.data_ptr():
        here.copy_(own)


def sum_rows(part: Tensor, whole: Tensor, group: dist.ProcessGroup) -> None:
    """Every rank's row for this one, added up."""
    rank, rows = dist.get_rank(group), whole.view(dist.get_world_size(group), -1)
    received = list(torch.empty_like(rows))
    received[rank] = rows[rank]
    _exchange(list(rows), received, group)
    # In the order of the ranks, so that a run can be repeated to the last bit.
    total = part.view(-1).copy_(received[0])
    for row in received[1:]:
        total.add_(row)


def _exchange(sent: Sequence[Tensor], received: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """Receive a row from each other rank, and send one to each.

    To the next rank first, so that ranks do not all begin with the same one.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    others = [(rank + step) % ranks for step in range(1, ranks)]
    works = [dist.irecv(received[other], group=group, group_src=other) for other in others]
    works += [dist.isend(sent[other], group=group, group_dst=other) for other in others]
    for work in works:
        assert work is not None
        work.wait()

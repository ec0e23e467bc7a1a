"""Exchanges of gloo from messages: the same numbers as its collectives, and half the bytes."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from fleetx.comm import collective_names, pairwise
from fleetx.testing import world

NUMBERS = 6
"""Of each rank's part."""


def sent_by(exchange: Callable[[], Any]) -> int:
    """How many numbers this rank sends in messages."""
    count, real = 0, dist.isend

    def counting(tensor: torch.Tensor, **kwargs: Any) -> Any:
        nonlocal count
        count += tensor.numel()
        return real(tensor, **kwargs)

    with patch.object(dist, "isend", counting):
        exchange()
    return count


def exchanged() -> list[tuple[int, int]]:
    """Numbers that this rank sends to scatter and to gather, of two formats."""
    group = dist.group.WORLD
    assert group is not None
    assert pairwise.is_gloo(torch.device("cpu"), group)
    assert not pairwise.is_gloo(torch.device("cuda"), group)
    return [compared(kind, group) for kind in (torch.float32, torch.float16)]


def compared(kind: torch.dtype, group: dist.ProcessGroup) -> tuple[int, int]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    whole = torch.randn(ranks * NUMBERS, generator=generator).to(kind)
    before = whole.clone()
    part, expected = whole.new_empty(NUMBERS), whole.new_empty(NUMBERS)
    scattered = sent_by(lambda: pairwise.reduce_scatter(part, whole, group))
    collective_names.reduce_scatter_single(expected, whole, group=group)
    # Sums in another order, of which none has more than a few steps.
    torch.testing.assert_close(part, expected, rtol=0, atol=8 * torch.finfo(kind).eps)
    assert torch.equal(whole, before), "what is sent stays"

    found, every = torch.empty_like(whole), torch.empty_like(whole)
    gathered = sent_by(lambda: pairwise.all_gather(found, part, group).wait())
    collective_names.all_gather_single(every, part, group=group)
    assert torch.equal(found, every)

    # A part that lies in its place already, as FSDP's does.
    inside = torch.zeros_like(whole)
    inside.view(ranks, -1)[rank] = part
    pairwise.all_gather(inside, inside.view(ranks, -1)[rank], group).wait()
    assert torch.equal(inside, every)
    return scattered, gathered


def test_two_ranks_send_each_number_once() -> None:
    assert world(2).run(exchanged) == [[(NUMBERS, NUMBERS)] * 2] * 2


def test_four_ranks_scatter_in_messages_and_gather_in_a_ring() -> None:
    assert world(4).run(exchanged) == [[(3 * NUMBERS, 0)] * 2] * 4

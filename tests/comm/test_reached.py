"""Which parameters got gradients since the last look."""

import torch
from torch import nn

from fleetx.comm.reached import Reached


def test_parameters_of_whole_numbers_and_frozen_ones_are_missed_by_nobody() -> None:
    whole = nn.Parameter(torch.arange(3), requires_grad=False)
    frozen, used, unused = (nn.Parameter(torch.ones(3)) for _ in range(3))
    frozen.requires_grad_(False)
    reached = Reached([whole, frozen, used, unused], frozen=True)
    assert not reached
    used.sum().backward()
    assert reached
    assert [id(p) for p in reached.missing()] == [id(unused)]
    reached.forget()
    assert [p.requires_grad for p in (whole, frozen)] == [False, False]
    frozen.requires_grad_(True)  # a frozen one may be thawed later
    (used + unused + frozen).sum().backward()
    assert reached.missing() == []

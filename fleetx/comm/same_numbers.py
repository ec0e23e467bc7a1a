"""A few numbers of each tensor, held against those of other ranks."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from fleetx.comm.local import local

LOOKED_AT = 14
"""Numbers of a tensor that are looked at, beside their mean and their size."""
APART = 1e-3
"""Of the largest of these: tensors of float32 that differ by more were not moved alike. Machines of
several kinds may differ in the last digits."""
APART_NARROW = 0.05
"""The same for 16 bits, whose last digit is large."""


def held_here(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parts that lie on this rank, where it has any."""
    parts = {name: local(tensor) for name, tensor in named.items()}
    return {name: part for name, part in parts.items() if part.numel() and not part.is_meta}


def prints_of(parts: Sequence[Tensor]) -> Tensor:
    """What stands for the numbers of each tensor, in a row of its own."""
    return torch.stack([print_of(part).cpu() for part in parts])


@torch.no_grad()
def print_of(part: Tensor) -> Tensor:
    """The same for one tensor; all that is not finite is the same."""
    numbers = torch.view_as_real(part.detach()) if part.is_complex() else part.detach()
    flat = numbers.reshape(-1).float()
    # In double precision: the places of a large tensor have no float32.
    last = flat.numel() - 1
    at = torch.linspace(0, last, LOOKED_AT, dtype=torch.float64, device=flat.device).long()
    size = torch.linalg.vector_norm(flat) / flat.numel() ** 0.5
    return torch.cat([torch.stack([flat.mean(), size]), flat[at]]).nan_to_num(0.0, 0.0, 0.0)


def first_apart(parts: Mapping[str, Tensor], one: Tensor, other: Tensor) -> str:
    """The first of these parts whose prints are further apart than last digits; "" if none is."""
    sizes = torch.maximum(one.abs(), other.abs()).amax(1)
    narrow = [part.element_size() < 4 for part in parts.values()]
    limits = torch.tensor([APART_NARROW if low else APART for low in narrow]) * sizes
    differ = ((one - other).abs().amax(1) > limits).tolist()
    return next((name for name, apart in zip(parts, differ, strict=True) if apart), "")


def bounds_over(prints: Tensor, group: dist.ProcessGroup, device: torch.device) -> list[Tensor]:
    """The smallest and the largest of the prints of all ranks of a group; a collective."""
    bounds = torch.stack([prints, -prints]).to(device)
    dist.all_reduce(bounds, op=dist.ReduceOp.MAX, group=group)
    return [-bounds[1].cpu(), bounds[0].cpu()]

"""A few numbers of each tensor, held against those of other ranks."""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from fleetx.comm.local import local
from fleetx.torch_internals import foreach_norm

LOOKED_AT = 15
"""Numbers of a tensor that are looked at, beside its size."""
FIGURES = 1 + LOOKED_AT
"""What stands for a tensor."""
APART = 1e-3
"""Of the largest of these: tensors of float32 that differ by more were not moved alike. Machines of
several kinds may differ in the last digits."""
APART_NARROW = 0.05
"""The same for 16 bits, whose last digit is large."""


def held_here(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parts that lie on this rank, where it has any."""
    parts = {name: local(tensor) for name, tensor in named.items()}
    return {name: part for name, part in parts.items() if part.numel() and not part.is_meta}


@torch.no_grad()
def prints_of(parts: Sequence[Tensor]) -> Tensor:
    """What stands for the numbers of each tensor, in a row of its own; none that is not finite.

    A row is the root of the mean square, and some numbers as they are. A GPU runs a few kernels for
    all tensors together and is waited for once.
    """
    flats = [_flat(part) for part in parts]
    picked = [flat[:: -(-flat.numel() // LOOKED_AT)] for flat in flats]
    place = flats[0].device
    found = torch.cat([one.to(place) for one in (*picked, *_norms(flats))]).float().cpu()
    numbers, norms = found[: -len(flats)], found[-len(flats) :]
    counts = torch.tensor([flat.numel() for flat in flats])
    rows = torch.nn.utils.rnn.pad_sequence(
        [*numbers.split([len(one) for one in picked]), torch.zeros(LOOKED_AT)], batch_first=True
    )[:-1]
    return torch.cat([(norms / counts**0.5)[:, None], rows], 1).nan_to_num(0.0, 0.0, 0.0)


def print_of(part: Tensor) -> Tensor:
    """The same for one tensor."""
    return prints_of([part])[0]


def _flat(part: Tensor) -> Tensor:
    numbers = torch.view_as_real(part) if part.is_complex() else part
    return numbers.reshape(-1)


def _norms(flats: Sequence[Tensor]) -> list[Tensor]:
    return [norm[None] for norm in foreach_norm(list(flats))]


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

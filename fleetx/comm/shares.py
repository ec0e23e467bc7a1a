"""Which part of a whole tensor a rank holds, and writing it there."""

from typing import Any

import torch
from torch import Tensor

from fleetx.comm.local import local

Share = tuple[slice, ...]
"""The part of a whole tensor, as an index of it."""


def share_of(tensor: Tensor) -> Share:
    """What this rank holds of a tensor; all of one that is not spread over ranks."""
    spread: Any = tensor
    if not hasattr(spread, "to_local"):
        return tuple(slice(0, size) for size in tensor.shape)
    (block,) = spread.__create_chunk_list__()  # one for each rank
    places = zip(block.offsets, block.sizes, strict=True)
    return tuple(slice(begin, begin + size) for begin, size in places)


@torch.no_grad()
def keep_share(target: Tensor, whole: Tensor) -> None:
    """Write this rank's part of a whole tensor into a tensor that is laid out over ranks."""
    local(target).copy_(whole[share_of(target)])

"""Parts of tensors that are spread over workers: which block of the whole lies here."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fleetx.comm.local import local


@dataclass(frozen=True)
class Chunk:
    """A block of a whole tensor."""

    here: Tensor
    """Its numbers; reading writes into them."""

    offset: tuple[int, ...]
    """Where it begins in the whole."""

    whole: torch.Size
    """The shape of the whole."""


@torch.no_grad()
def chunk_of(tensor: Tensor) -> Chunk:
    """The block that this worker has of a tensor, which may be spread or not."""
    here = local(tensor.detach())
    if not hasattr(tensor, "to_local"):
        return Chunk(here, (0,) * here.dim(), here.shape)
    spread: Any = tensor
    (block,) = spread.__create_chunk_list__()  # one for each rank
    return Chunk(here, tuple(block.offsets), tensor.shape)

"""Parts of tensors that are spread over workers: which block of the whole lies here."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fleetx.comm.local import local
from fleetx.comm.shares import share_of


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
    offset = tuple(part.start for part in share_of(tensor))
    return Chunk(local(tensor.detach()), offset, tensor.shape)

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
    if not hasattr(spread, "placements"):
        return tuple(slice(0, size) for size in tensor.shape)
    return tuple(_along(spread, dim) for dim in range(tensor.ndim))


def _along(spread: Any, dim: int) -> slice:
    """The part along one dimension: torch is asked where the numbers 0, 1, 2 ... of it would go."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    size = spread.shape[dim]
    # How a dimension that is cut twice is cut: the one that cuts every piece again knows.
    cuts = [p if getattr(p, "dim", None) == dim else None for p in spread.placements]
    if not any(cuts):
        return slice(0, size)
    first = [
        Replicate() if cut is None else Shard(0) if type(cut) is Shard else _first_dim(cut)
        for cut in cuts
    ]
    numbers = torch.arange(size, device=spread.device_mesh.device_type)
    held = distribute_tensor(numbers, spread.device_mesh, first, src_data_rank=None).to_local()
    if not held.numel():
        return slice(0, 0)
    begin, end = int(held[0]), int(held[-1]) + 1
    assert end - begin == held.numel(), "ranks hold parts in one piece"
    return slice(begin, end)


def _first_dim(cut: Any) -> Any:
    return type(cut)(0, split_factor=cut.split_factor)


@torch.no_grad()
def keep_share(target: Tensor, whole: Tensor) -> None:
    """Write this rank's part of a whole tensor into a tensor that is laid out over ranks."""
    local(target).copy_(whole[share_of(target)] if target.ndim else whole)

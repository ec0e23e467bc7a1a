"""``p.data = values`` of tensors that are spread over workers, which torch would lose.

It exchanges what stands around the numbers of a part, and leaves the numbers as they were, without
a word; averages of weights, clipped weights and steps of SAM are written so. Here each worker takes
its part of the values, in the place where its part lies.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from fleetx.spread.followed import is_seen_to
from fleetx.spread.gathered_calls import everywhere, is_spread
from fleetx.torch_internals import part_held

_OF_TORCH: Any = Tensor.data


def take_assigned_data() -> None:
    """From now on, in this process."""
    setattr(DTensor, "data", property(_OF_TORCH.__get__, _assign))  # noqa: B010


def _assign(target: DTensor, values: Tensor) -> None:
    if is_seen_to() or not _fits(target, values):
        _OF_TORCH.__set__(target, values)  # another format, which stops the next batch
        return
    with torch.no_grad():
        whole = values.detach()
        if not is_spread(whole):
            whole = everywhere(whole.to(target.device), target.device_mesh)
        part = part_held(whole.redistribute(placements=target.placements))
        # As torch's own, it does not count as a write, for which a backward would stop.
        part_held(target).data.copy_(part)


def _fits(target: DTensor, values: Tensor) -> bool:
    """Whether the tensor stays of the same kind."""
    if is_spread(values) and values.device_mesh != target.device_mesh:
        return False
    same = values.shape == target.shape and values.dtype == target.dtype
    return same and not target.is_meta and not values.is_meta

"""Whether the batches of all ranks left the same parameters out."""

from collections.abc import Iterable
from hashlib import blake2b

import torch
import torch.distributed as dist
from torch import Tensor

from fleetx.comm.reached import Reached


def same_on_all(
    reached: Reached, missing: Iterable[Tensor], group: dist.ProcessGroup, device: torch.device
) -> bool:
    """Whether all ranks miss the same ones; a collective."""
    digest = int.from_bytes(blake2b(reached.marks(missing), digest_size=7).digest())
    bounds = torch.tensor([digest, -digest], device=device)
    dist.all_reduce(bounds, op=dist.ReduceOp.MAX, group=group)
    largest, smallest = bounds.tolist()
    return bool(largest == -smallest)

"""Collectives on one tensor, under the names of torch 2.13 and of older releases."""

from collections.abc import Callable

import torch.distributed as dist

# Since torch 2.13 the old names warn.
all_gather_single: Callable[..., dist.Work | None] = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)
reduce_scatter_single: Callable[..., dist.Work | None] = getattr(
    dist, "reduce_scatter_single", dist.reduce_scatter_tensor
)

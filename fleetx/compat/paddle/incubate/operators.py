"""Operators of ``paddle.incubate``: masked softmax, and sums over the segments of a tensor."""

import math
from typing import Any

import torch

from fleetx.compat.tensors import op

__all__ = [
    "graph_send_recv",
    "identity_loss",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_sum",
    "softmax_mask_fuse",
    "softmax_mask_fuse_upper_triangle",
]


@op
def softmax_mask_fuse(x: Any, mask: Any, name: str | None = None) -> Any:
    """Softmax over the last axis of scores, with a mask added."""
    return torch.softmax(x + mask, -1)


@op
def softmax_mask_fuse_upper_triangle(x: Any) -> Any:
    """Softmax over the last axis, in which no row sees what comes behind it."""
    ahead = torch.triu(torch.ones_like(x, dtype=torch.bool), 1)
    return torch.softmax(torch.masked_fill(x, ahead, -math.inf), -1)


def _count(segment_ids: Any, out_size: Any = None) -> int:
    if out_size is not None and int(out_size) > 0:
        return int(out_size)
    return int(segment_ids.max()) + 1 if len(segment_ids) else 0


def _reduced(x: Any, ids: Any, how: str, count: int) -> Any:
    """Rows of the same number as one; numbers without rows have zeros."""
    places = torch.reshape(ids, (-1, *[1] * (x.dim() - 1))).expand_as(x).to(torch.int64)
    start = torch.zeros([count, *x.shape[1:]], dtype=x.dtype, device=x.device)
    return torch.scatter_reduce(start, 0, places, x, how, include_self=False)


@op
def segment_sum(data: Any, segment_ids: Any, name: str | None = None) -> Any:
    """The sum of the rows of each segment."""
    return _reduced(data, segment_ids, "sum", _count(segment_ids))


@op
def segment_mean(data: Any, segment_ids: Any, name: str | None = None) -> Any:
    """The mean of the rows of each segment."""
    return _reduced(data, segment_ids, "mean", _count(segment_ids))


@op
def segment_max(data: Any, segment_ids: Any, name: str | None = None) -> Any:
    """The largest numbers of each segment."""
    return _reduced(data, segment_ids, "amax", _count(segment_ids))


@op
def segment_min(data: Any, segment_ids: Any, name: str | None = None) -> Any:
    """The smallest numbers of each segment."""
    return _reduced(data, segment_ids, "amin", _count(segment_ids))


_POOLS = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}


@op
def graph_send_recv(  # noqa: PLR0917 (the order of Paddle)
    x: Any,
    src_index: Any,
    dst_index: Any,
    pool_type: str = "sum",
    out_size: Any = None,
    name: str | None = None,
) -> Any:
    """Rows of the nodes from which edges come, reduced at the nodes to which they go."""
    if pool_type not in _POOLS:
        raise ValueError(f"graph_send_recv(pool_type={pool_type!r}): one of {', '.join(_POOLS)}.")
    count = int(out_size) if out_size is not None and int(out_size) > 0 else len(x)
    return _reduced(x[src_index], dst_index, _POOLS[pool_type], count)


@op
def identity_loss(x: Any, reduction: Any = "none") -> Any:
    """The loss itself, its sum or its mean."""
    how = {0: "sum", 1: "mean", 2: "none"}.get(reduction, reduction)
    return x if how == "none" else torch.sum(x) if how == "sum" else torch.mean(x)

"""Rows for places, or sums of them, and the way back: gradients of one row added up.

torch's own embedding does the same, but on processors its way back costs ten times as much.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from fleetx.ps import kernels


class _Pick(torch.autograd.Function):
    """``rows[places]`` of a flat list of places."""

    @staticmethod
    @override
    def forward(ctx: Any, rows: Tensor, places: Tensor) -> Tensor:
        ctx.places, ctx.count = places, rows.shape[0]
        return rows.index_select(0, places)

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        return summed(grad, ctx.places, ctx.count), None


class _Pool(torch.autograd.Function):
    """The sum of ``rows[places]`` in each bag."""

    @staticmethod
    @override
    def forward(ctx: Any, rows: Tensor, places: Tensor, bags: Tensor, number: int) -> Tensor:
        ctx.places, ctx.bags, ctx.count = places, bags, rows.shape[0]
        return pooled(rows, places, bags, number)

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        return pooled(grad, ctx.bags, ctx.places, ctx.count), None, None, None


def summed(rows: Tensor, targets: Tensor, count: int) -> Tensor:
    """The sum of the rows of each target."""
    total = rows.new_zeros(count, rows.shape[1])
    if rows.device.type == "cpu" and rows.dtype == torch.float32:
        arrays = rows.detach().contiguous().numpy(), targets.numpy(), total.numpy()
        kernels.active.sum_rows(*arrays)
        return total
    return total.index_add_(0, targets, rows)


def pooled(rows: Tensor, sources: Tensor, targets: Tensor, count: int) -> Tensor:
    """The sum of ``rows[sources]`` of each target."""
    if rows.device.type != "cpu" or rows.dtype != torch.float32:
        return summed(rows.index_select(0, sources), targets, count)
    total = rows.new_zeros(count, rows.shape[1])
    arrays = rows.detach().contiguous().numpy(), sources.numpy(), targets.numpy(), total.numpy()
    kernels.active.pool_rows(*arrays)
    return total


def all_picked(rows: Tensor, shape: torch.Size) -> Tensor:
    """All rows in their order; nothing is added up on the way back."""
    # A copy, so that the caller may write to it in place.
    return rows.clone().view(*shape, rows.shape[1])


def picked(rows: Tensor, places: Tensor) -> Tensor:
    """``rows[places]``."""
    found: Tensor = _Pick.apply(rows, places.reshape(-1))  # type: ignore[no-untyped-call]
    # Out here: torch lets nobody write to a view that was made inside.
    return found.reshape(*places.shape, rows.shape[1])


def summed_in_bags(rows: Tensor, places: Tensor, bags: Tensor, number: int) -> Tensor:
    """The sum of ``rows[places]`` in each of so many bags."""
    found: Tensor = _Pool.apply(rows, places, bags, number)  # type: ignore[no-untyped-call]
    return found


def bags_of(shape: torch.Size, offsets: Tensor | None, device: torch.device) -> tuple[Tensor, int]:
    """The bag of each id and the number of bags: rows of a rectangle, or between offsets."""
    if len(shape) != (2 if offsets is None else 1):
        raise ValueError(
            f"ids of shape {list(shape)} {'without' if offsets is None else 'with'} offsets "
            "make no bags; pass a rectangle with one bag in each row, or a flat list and offsets"
        )
    if offsets is None:
        bags = torch.arange(shape[0], device=device)
        return bags.repeat_interleave(shape[1]), shape[0]
    sizes = offsets.diff(append=offsets.new_tensor([shape[0]]))
    if int(sizes.sum()) != shape[0] or bool((sizes < 0).any()):
        raise ValueError(
            f"offsets must begin with 0, rise, and end before the {shape[0]} ids; they are "
            f"{offsets.tolist()[:8]}"
        )
    bags = torch.arange(len(offsets), device=device)
    return bags.repeat_interleave(sizes.to(device)), len(offsets)

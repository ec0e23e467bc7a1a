"""Limits on gradients, many tensors at a time and without a word to the host."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fleetx.comm.local import local
from fleetx.torch_internals import foreach_clamp_max_, foreach_clamp_min_, foreach_mul_


def gradients_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The numbers of all gradients; of sparse ones those of the rows that they have, once each."""
    found = []
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            found.append(parameter.grad.values())
        elif parameter.grad is not None:
            found.append(parameter.grad)
    return found


@torch.no_grad()
def by_value(gradients: list[Tensor], lowest: float, highest: float) -> None:
    """Force every number into ``[lowest, highest]``, in place."""
    for group in _alike(gradients):
        parts = [local(gradient) for gradient in group]
        foreach_clamp_max_(parts, highest)
        foreach_clamp_min_(parts, lowest)


@torch.no_grad()
def by_norm(gradients: list[Tensor], limit: float) -> None:
    """Shrink every tensor whose norm is above ``limit`` to it, in place."""
    for group in _alike(gradients):
        factors = shrink(_norms(group), limit).to(group[0].dtype)
        foreach_mul_([local(gradient) for gradient in group], list(factors.unbind()))


@torch.no_grad()
def by_global_norm(
    gradients: list[Tensor], limit: float, norm: Tensor | None = None
) -> Tensor | None:
    """Shrink all tensors together if their common norm is above ``limit``; return that norm.

    Args:
        gradients: Those of this rank.
        limit: The largest norm that is left alone.
        norm: The common norm, where other ranks hold gradients of the same model.
    """
    if not gradients:
        return norm
    total = global_norm(gradients) if norm is None else norm
    factor = shrink(total, limit)
    for group in _alike(gradients):
        parts = [local(gradient) for gradient in group]
        foreach_mul_(parts, factor.to(device=parts[0].device, dtype=parts[0].dtype))
    return total


def global_norm(tensors: list[Tensor]) -> Tensor:
    """The Euclidean norm of all numbers of all tensors, in single precision at least."""
    parts = [_norms(group).to(tensors[0].device) for group in _alike(tensors)]
    total: Tensor = torch.linalg.vector_norm(torch.cat(parts))
    return total


def shrink(norm: Tensor, limit: float) -> Tensor:
    """``limit / max(norm, limit)``: one for what is small enough, exactly."""
    return torch.full_like(norm, limit).div_(norm.clamp(min=limit))


def _norms(group: list[Tensor]) -> Tensor:
    """One real norm per tensor; those of half precision would overflow in their own format."""
    # Loads DTensor, which is slow, with the first use.
    from fleetx.comm.norms import norms

    wide = {torch.float32, torch.float64}
    parts = [local(tensor) for tensor in group]
    parts = [torch.view_as_real(part) if part.is_complex() else part for part in parts]
    return norms([t if t.dtype in wide else t.float() for t in parts], group)


def _alike(tensors: list[Tensor]) -> list[list[Tensor]]:
    """Multi-tensor operations want one device and one type."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return list(groups.values())

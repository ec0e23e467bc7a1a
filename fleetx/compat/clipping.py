"""Limits on gradients: one for all programs, and how an eager step obeys one."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fleetx.api.grad_clip import GradClip
from fleetx.compat.groups import Group

_for_all: list[GradClip] = []
"""What ``set_gradient_clip`` said last, if it did."""


def set_for_all(clip: GradClip | None) -> None:
    """Limit gradients wherever an optimizer names no limit; None forgets it."""
    _for_all[:] = [] if clip is None else [clip]


def clip_in_force(given: Any) -> GradClip | None:
    """What limits the gradients of an optimizer that was given this."""
    if given is None:
        return _for_all[-1] if _for_all else None
    if not isinstance(given, GradClip):
        raise TypeError(
            "grad_clip is one of ClipGradByGlobalNorm, ClipGradByNorm and ClipGradByValue of "
            f"paddle.nn, got {given!r}"
        )
    return given


def clip_gradients(
    clip: GradClip, parameters: Sequence[Tensor], group: Group | None = None
) -> None:
    """Limit the gradients of parameters in place; those marked ``need_clip=False`` stay.

    Args:
        clip: the limit.
        parameters: those of this worker.
        group: the workers that hold other parts of the same layers.
    """
    moved = [p for p in parameters if p.grad is not None and getattr(p, "need_clip", True)]
    chosen = [p.grad for p in moved if p.grad is not None]
    if not chosen:
        return
    options = clip.options()
    limit = options["limit"]
    with torch.no_grad():
        if options["by"] == "value":
            for gradient in chosen:
                gradient.clamp_(options.get("lowest", -limit), limit)
        elif options["by"] == "norm":
            for gradient in chosen:
                gradient.mul_(_factor(_norm([gradient]), limit))
        else:
            common = _common_norm(moved, group)
            factor = _factor(_norm(chosen) if common is None else common, limit)
            for gradient in chosen:
                gradient.mul_(factor)


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of all numbers together."""
    found: Tensor = torch.stack([torch.linalg.vector_norm(t) for t in tensors])
    total: Tensor = torch.linalg.vector_norm(found)
    return total


def _factor(norm: Tensor, limit: float) -> Tensor:
    """One for what is small enough, exactly."""
    return limit / torch.clamp(norm, min=limit)


def _common_norm(parameters: Sequence[Tensor], group: Group | None) -> Tensor | None:
    """The norm over the parts of all workers; None where each has everything."""
    if group is None or group.nranks == 1:
        return None
    cut = [p.grad for p in parameters if getattr(p, "is_distributed", False)]
    whole = [p.grad for p in parameters if not getattr(p, "is_distributed", False)]
    squares = _square([g for g in cut if g is not None])
    dist.all_reduce(squares, group=group.process_group)
    return (squares + _square([g for g in whole if g is not None])).sqrt()


def _square(gradients: Sequence[Tensor]) -> Tensor:
    return _norm(gradients).square() if gradients else torch.zeros(())

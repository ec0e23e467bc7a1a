"""Limits on gradients: one for all programs, and how an eager step obeys one."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fleetx.api.grad_clip import GradClip
from fleetx.compat.groups import Group
from fleetx.strategies.clip.clipping import by_global_norm, by_norm, by_value, global_norm

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
    options = clip.options()
    limit = options["limit"]
    if options["by"] == "global_norm":
        by_global_norm(chosen, limit, norm=_common_norm(moved, group))
    elif options["by"] == "norm":
        by_norm(chosen, limit)
    else:
        by_value(chosen, options.get("lowest", -limit), limit)


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
    return global_norm(list(gradients)).square() if gradients else torch.zeros(())

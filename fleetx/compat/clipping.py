"""Limits on gradients: one for all programs, and how an eager step obeys one."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fleetx.api.grad_clip import GradClip
from fleetx.strategies.clip.clipping import by_global_norm, by_norm, by_value

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


def clip_gradients(clip: GradClip, parameters: Sequence[Tensor]) -> None:
    """Limit the gradients of parameters in place; those marked ``need_clip=False`` stay."""
    chosen = [p.grad for p in parameters if p.grad is not None and getattr(p, "need_clip", True)]
    options = clip.options()
    limit = options["limit"]
    if options["by"] == "global_norm":
        by_global_norm(chosen, limit)
    elif options["by"] == "norm":
        by_norm(chosen, limit)
    else:
        by_value(chosen, options.get("lowest", -limit), limit)

"""``paddle.fluid.clip``."""

from collections.abc import Sequence
from typing import Any

from fleetx.api.grad_clip import GradClip
from fleetx.compat.clipping import set_for_all
from fleetx.compat.paddle.nn.clip import (
    ClipGradByGlobalNorm,
    ClipGradByNorm,
    ClipGradByValue,
    NeedClip,
)


class GradientClipByValue(ClipGradByValue):
    """Force every number into ``[min, max]``."""


class GradientClipByNorm(ClipGradByNorm):
    """Shrink each gradient whose norm is above ``clip_norm``."""


class GradientClipByGlobalNorm(ClipGradByGlobalNorm):
    """Shrink all gradients together when their common norm is above ``clip_norm``."""

    def __init__(
        self, clip_norm: float, group_name: str = "default_group", need_clip: NeedClip = None
    ) -> None:
        super().__init__(clip_norm, group_name, need_clip=need_clip)


def set_gradient_clip(
    clip: GradClip, param_list: Sequence[Any] | None = None, program: Any = None
) -> None:
    """Limit the gradients of programs whose optimizer names no limit of its own."""
    if not isinstance(clip, GradClip):
        raise TypeError(
            "set_gradient_clip() takes clip=fluid.clip.GradientClipByGlobalNorm(1.0) or one of "
            f"its like, got {clip!r}"
        )
    if param_list is not None:
        raise ValueError(
            "set_gradient_clip(param_list=...) limits some gradients only, and a program limits "
            "all of them here; leave it out, or mark the others with ParamAttr(need_clip=False)."
        )
    set_for_all(clip)


class ErrorClipByValue:
    """Limits what flows back through one variable; it does not exist here."""

    def __init__(self, max: float, min: float | None = None) -> None:
        raise NotImplementedError(
            f"fluid.clip.ErrorClipByValue(max={max}) limits the gradient of an intermediate "
            "variable, which programs do not do here; limit the gradients of parameters with "
            "GradientClipByValue."
        )

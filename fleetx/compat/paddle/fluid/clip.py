"""``paddle.fluid.clip``."""

from collections.abc import Sequence
from typing import Any

from fleetx.api.grad_clip import GradClip
from fleetx.compat.clipping import limit
from fleetx.compat.paddle.nn.clip import (
    ClipGradByGlobalNorm,
    ClipGradByNorm,
    ClipGradByValue,
    NeedClip,
)
from fleetx.static.record.current import default_main_program


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
    """Limit the gradients of a program whose optimizer names no limit of its own."""
    if not isinstance(clip, GradClip):
        raise TypeError(
            "set_gradient_clip() takes clip=fluid.clip.GradientClipByGlobalNorm(1.0) or one of "
            f"its like, got {clip!r}"
        )
    names = None if param_list is None else [getattr(p, "name", p) for p in param_list]
    limit(default_main_program() if program is None else program, clip, names)


class ErrorClipByValue:
    """Limits what flows back through one variable; it does not exist here."""

    def __init__(self, max: float, min: float | None = None) -> None:
        raise NotImplementedError(
            f"fluid.clip.ErrorClipByValue(max={max}) limits the gradient of an intermediate "
            "variable, which programs do not do here; limit the gradients of parameters with "
            "GradientClipByValue."
        )

"""``ClipGradBy…`` of ``paddle.nn``: limits on gradients, which optimizers obey."""

from collections.abc import Callable
from typing import Any

from fleetx.api import grad_clip
from fleetx.compat.notes import note

NeedClip = Callable[[Any], bool] | None


def _refuse_choice(kind: str, need_clip: NeedClip) -> None:
    if need_clip is not None:
        raise ValueError(
            f"{kind}(need_clip=...) chooses parameters by a function, and gradients are limited "
            "all together here; say it of each parameter: ParamAttr(need_clip=False)."
        )


class ClipGradByValue(grad_clip.ClipGradByValue):
    """Force every number into ``[min, max]``; ``min`` is ``-max`` when it is not given."""

    def __init__(self, max: float, min: float | None = None, need_clip: NeedClip = None) -> None:
        _refuse_choice("ClipGradByValue", need_clip)
        super().__init__(float(max), None if min is None else float(min))


class ClipGradByNorm(grad_clip.ClipGradByNorm):
    """Shrink each gradient whose norm is above ``clip_norm``."""

    def __init__(self, clip_norm: float, need_clip: NeedClip = None) -> None:
        _refuse_choice("ClipGradByNorm", need_clip)
        super().__init__(float(clip_norm))


class ClipGradByGlobalNorm(grad_clip.ClipGradByGlobalNorm):
    """Shrink all gradients together when their common norm is above ``clip_norm``."""

    def __init__(
        self,
        clip_norm: float,
        group_name: str = "default_group",
        auto_skip_clip: bool = False,
        need_clip: NeedClip = None,
    ) -> None:
        _refuse_choice("ClipGradByGlobalNorm", need_clip)
        if auto_skip_clip:
            note("auto_skip_clip", "gradients below the limit are left alone anyway")
        super().__init__(float(clip_norm))
        object.__setattr__(self, "group_name", group_name)

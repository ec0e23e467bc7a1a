"""``paddle.fluid.dygraph_grad_clip``: limits of gradients, as eager mode of Paddle 1.7 had them."""

from typing import Any

from fleetx.compat.paddle.nn.clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue


class GradClipByValue(ClipGradByValue):
    """Force every number into ``[min_value, max_value]``, or into ``[-min_value, min_value]``."""

    def __init__(self, min_value: float, max_value: float | None = None) -> None:
        low, high = (
            (-abs(min_value), abs(min_value)) if max_value is None else (min_value, max_value)
        )
        super().__init__(max=float(high), min=float(low))


class GradClipByNorm(ClipGradByNorm):
    """Shrink each gradient whose norm is above ``clip_norm``."""


class GradClipByGlobalNorm(ClipGradByGlobalNorm):
    """Shrink all gradients together when their common norm is above ``max_global_norm``."""

    def __init__(self, max_global_norm: float, dtype: Any = "float32") -> None:
        super().__init__(float(max_global_norm))

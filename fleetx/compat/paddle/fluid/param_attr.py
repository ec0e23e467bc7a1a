"""``paddle.fluid.param_attr``."""

from typing import Any

from fleetx.compat.parameters import ParamAttr

__all__ = ["ParamAttr", "WeightNormParamAttr"]


class WeightNormParamAttr(ParamAttr):
    """Refused: ``paddle.nn.utils.weight_norm`` does it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "WeightNormParamAttr is not covered; use paddle.nn.utils.weight_norm on a layer, or "
            "ParamAttr without it."
        )

"""``paddle.fluid.dygraph.container``."""

from fleetx.compat.paddle.nn.layer.container import LayerList, ParameterList, Sequential

__all__ = ["LayerList", "ParameterList", "Sequential"]

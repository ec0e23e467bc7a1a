"""``paddle.fluid.dygraph.layers``."""

from fleetx.compat.paddle.nn.layer.layers import Layer

__all__ = ["Layer"]

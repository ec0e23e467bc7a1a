"""``paddle.fluid.layers.nn``: every layer and operator, by the same names."""

from fleetx.compat.paddle.fluid import layers
from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {"paddle.fluid.layers": [name for name in dir(layers) if name != "nn"]},
)

"""``paddle.static.nn.sequence_lod``: layers of records of different lengths."""

from fleetx.compat.paddle.fluid.layers.sequence_lod import *  # noqa: F403 (the same module)
from fleetx.compat.paddle.fluid.layers.sequence_lod import __all__  # noqa: F401

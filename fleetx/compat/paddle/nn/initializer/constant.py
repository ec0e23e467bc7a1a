"""``paddle.nn.initializer.constant``."""

from fleetx.compat.fills import Number


class Constant(Number):
    """One number everywhere."""


ConstantInitializer = Constant

"""``paddle.fluid.tests``: what scripts borrow from Paddle's own tests."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(__name__, {}, modules=["unittests"])

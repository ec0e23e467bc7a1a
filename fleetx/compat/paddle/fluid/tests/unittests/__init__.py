"""``paddle.fluid.tests.unittests``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(__name__, {}, modules=["op_test"])

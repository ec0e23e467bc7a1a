"""``paddle.fluid.proto``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(__name__, {}, modules=["framework_pb2"])

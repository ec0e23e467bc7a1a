"""``paddle.fluid.incubate``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(__name__, {}, modules=["data_generator", "fleet"])

"""``paddle.fluid.incubate.fleet.parameter_server``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(__name__, {}, modules=["distribute_transpiler", "pslib"])

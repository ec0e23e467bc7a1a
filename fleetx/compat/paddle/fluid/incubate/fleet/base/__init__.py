"""``paddle.fluid.incubate.fleet.base``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(__name__, {}, modules=["fleet_base", "role_maker"])

"""``paddle.fluid.incubate.fleet``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__, {}, modules=["base", "collective", "parameter_server", "utils"]
)

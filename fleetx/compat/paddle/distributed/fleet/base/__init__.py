"""``paddle.distributed.fleet.base``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {},
    modules=["distributed_strategy", "fleet_base", "role_maker", "topology", "util_factory"],
)

"""``paddle.distributed.fleet.meta_optimizers.sharding``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(__name__, {}, modules=["utils"])

"""``paddle.distributed.fleet.meta_optimizers``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(__name__, {}, modules=["dygraph_optimizer", "sharding"])

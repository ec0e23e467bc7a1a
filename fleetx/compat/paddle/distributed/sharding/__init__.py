"""``paddle.distributed.sharding``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__, {"sharded": "group_sharded_parallel save_group_sharded_model"}
)

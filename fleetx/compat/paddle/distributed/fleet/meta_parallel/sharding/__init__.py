"""``paddle.distributed.fleet.meta_parallel.sharding``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {},
    modules=[
        "group_sharded_optimizer_stage2",
        "group_sharded_stage2",
        "group_sharded_stage3",
        "group_sharded_utils",
        "sharding_stage2",
        "sharding_stage3",
        "sharding_utils",
    ],
)

"""``paddle.distributed.fleet.meta_parallel.sharding.group_sharded_optimizer_stage2``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__, {"sharded": "GroupShardedOptimizerStage2=ShardingOptimizerStage2"}
)

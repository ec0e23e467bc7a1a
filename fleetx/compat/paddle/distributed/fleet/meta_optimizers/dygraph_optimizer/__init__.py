"""``paddle.distributed.fleet.meta_optimizers.dygraph_optimizer``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {"sharded": "DygraphShardingOptimizer ShardingOptimizerStage2"},
    modules=["dygraph_sharding_optimizer", "sharding_optimizer_stage2"],
)

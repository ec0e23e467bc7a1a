"""``paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.sharding_optimizer_stage2``."""

from fleetx.compat.sharded import ShardingOptimizerStage2

__all__ = ["ShardingOptimizerStage2"]

"""``paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer``."""

from fleetx.compat.sharded import DygraphShardingOptimizer

__all__ = ["DygraphShardingOptimizer"]

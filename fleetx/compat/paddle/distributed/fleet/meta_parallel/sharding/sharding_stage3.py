"""``paddle.distributed.fleet.meta_parallel.sharding.sharding_stage3``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(__name__, {"sharded": "ShardingStage3=sharding_stage_3"})

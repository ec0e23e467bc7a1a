"""``paddle.distributed.fleet.meta_parallel.sharding.sharding_stage2``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(__name__, {"sharded": "ShardingStage2=sharding_stage_2"})

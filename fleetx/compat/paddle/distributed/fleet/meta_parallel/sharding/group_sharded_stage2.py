"""``paddle.distributed.fleet.meta_parallel.sharding.group_sharded_stage2``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(__name__, {"sharded": "GroupShardedStage2=sharding_stage_2"})

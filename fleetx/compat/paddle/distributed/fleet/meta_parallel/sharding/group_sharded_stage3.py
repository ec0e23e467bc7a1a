"""``paddle.distributed.fleet.meta_parallel.sharding.group_sharded_stage3``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(__name__, {"sharded": "GroupShardedStage3=sharding_stage_3"})

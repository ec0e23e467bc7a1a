"""``paddle.distributed.fleet.meta_parallel.sharding.sharding_utils``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__, {"paddle.amp.grad_scaler": "ShardingScaler=distributed_scaler"}
)

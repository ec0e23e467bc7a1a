"""``paddle.distributed.fleet.base.distributed_strategy``."""

from fleetx.compat.fleet_strategies import DistributedStrategy

__all__ = ["DistributedStrategy"]

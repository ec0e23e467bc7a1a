"""The fleet of Paddle 1 for jobs with servers."""

from typing import Any

from typing_extensions import override

from fleetx.compat.distribution import DistributedOptimizer, distribute
from fleetx.compat.fleet_strategies import DistributeTranspilerConfig
from fleetx.compat.fleets import Fleet


class DistributedTranspiler(Fleet):
    """Workers and servers."""

    _collective = False

    @override
    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> DistributedOptimizer:
        return super().distributed_optimizer(optimizer, strategy or DistributeTranspilerConfig())


fleet = DistributedTranspiler()


class TranspilerOptimizer:
    """An optimizer of all workers, made without asking the fleet object."""

    def __new__(cls, optimizer: Any, strategy: Any = None) -> Any:
        """What ``fleet.distributed_optimizer`` returns."""
        return distribute(optimizer, strategy)

"""``paddle.fluid.incubate.fleet.collective``: workers that exchange among themselves."""

from typing import Any

from typing_extensions import override

from fleetx.compat.distribution import DistributedOptimizer, distribute
from fleetx.compat.fleet_strategies import CollectiveStrategy as DistributedStrategy
from fleetx.compat.fleets import Fleet

DistFCConfig = type("DistFCConfig", (), {"__doc__": "Known by name alone; it is refused."})


class Collective(Fleet):
    """The collective fleet of Paddle 1."""

    _collective = True

    @override
    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> DistributedOptimizer:
        return super().distributed_optimizer(optimizer, strategy or DistributedStrategy())

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Refused: checkpoints are written by fleetx.io."""
        raise NotImplementedError(
            "fleet.save_checkpoint(): checkpoints of Paddle 1.8 are numbered folders of a file "
            "system; save with fleet.save_persistables(executor, dirname)."
        )


fleet = Collective()


class CollectiveOptimizer:
    """An optimizer of all workers, made without asking the fleet object."""

    def __new__(cls, optimizer: Any, strategy: Any = None) -> Any:
        """What ``fleet.distributed_optimizer`` returns."""
        return distribute(optimizer, strategy)


__all__ = ["Collective", "CollectiveOptimizer", "DistFCConfig", "DistributedStrategy", "fleet"]

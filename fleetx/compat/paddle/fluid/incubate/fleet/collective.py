"""``paddle.fluid.incubate.fleet.collective``: workers that exchange among themselves."""

from typing import Any

from typing_extensions import override

from fleetx.compat.distribution import DistributedOptimizer, distribute
from fleetx.compat.fleet_strategies import CollectiveStrategy as DistributedStrategy
from fleetx.compat.fleets import Fleet
from fleetx.compat.numbered_checkpoints import TrainStatus, clean, load, save

DistFCConfig = type("DistFCConfig", (), {"__doc__": "Known by name alone; it is refused."})


class Collective(Fleet):
    """The collective fleet of Paddle 1."""

    _collective = True

    @override
    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> DistributedOptimizer:
        return super().distributed_optimizer(optimizer, strategy or DistributedStrategy())

    def save_checkpoint(  # noqa: PLR0917 (the order of Paddle)
        self,
        executor: Any,
        path: str,
        trainer_id: int = 0,
        train_status: TrainStatus | None = None,
        fs: Any = None,
        main_program: Any = None,
        local_cache_path: str = ".cache",
        remain_all_checkpoint: bool = True,
    ) -> None:
        """Save values and the number of the epoch as the next numbered folder of ``path``."""

        def saving(folder: str) -> None:
            self.save_persistables(executor, folder, main_program)

        status = TrainStatus() if train_status is None else train_status
        save(
            saving,
            path,
            status,
            fs,
            local_cache_path=local_cache_path,
            remain_all=remain_all_checkpoint,
        )

    def load_checkpoint(  # noqa: PLR0917 (the order of Paddle)
        self,
        executor: Any,
        path: str,
        trainer_id: int = 0,
        fs: Any = None,
        main_program: Any = None,
        local_cache_path: str = ".cache",
        ignore_empty: bool = True,
    ) -> TrainStatus | None:
        """Load the last of those folders; its status says with which epoch to go on."""

        def loading(folder: str) -> None:
            self.load_persistables(executor, folder, main_program)

        return load(loading, path, fs, local_cache_path, ignore_empty)

    def clean_redundant_checkpoints(
        self, root_path: str, fs: Any = None, checkpoint_num: int = 1
    ) -> None:
        """Delete all checkpoints but the last ones."""
        clean(root_path, fs, checkpoint_num)


fleet = Collective()


class CollectiveOptimizer:
    """An optimizer of all workers, made without asking the fleet object."""

    def __new__(cls, optimizer: Any, strategy: Any = None) -> Any:
        """What ``fleet.distributed_optimizer`` returns."""
        return distribute(optimizer, strategy)


__all__ = [
    "Collective",
    "CollectiveOptimizer",
    "DistFCConfig",
    "DistributedStrategy",
    "TrainStatus",
    "fleet",
]

"""How workers exchange with servers, as Paddle 1.8 names the ways."""

from fleetx.compat.fleet_strategies import TrainerStrategy as DistributedStrategy
from fleetx.compat.notes import note


class SyncStrategy(DistributedStrategy):
    """Every update waits for all workers."""

    def __init__(self) -> None:
        super().__init__()
        self.sync_mode = True


class AsyncStrategy(DistributedStrategy):
    """Workers go on without waiting for each other."""

    def __init__(self) -> None:
        super().__init__()
        self.sync_mode = False
        self.runtime_split_send_recv = True


class HalfAsyncStrategy(DistributedStrategy):
    """Workers go on without each other, and wait for their own gradients to arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.sync_mode = False
        self.half_async = True


class GeoStrategy(DistributedStrategy):
    """Workers train copies, and exchange what changed every so many batches."""

    def __init__(self, update_frequency: int = 100) -> None:
        super().__init__()
        self.sync_mode = False
        self.geo_sgd_mode = True
        self.geo_sgd_need_push_nums = int(update_frequency)


class StrategyFactory:
    """Makes one by its name."""

    @staticmethod
    def create_sync_strategy() -> SyncStrategy:
        """Every update waits for all workers."""
        return SyncStrategy()

    @staticmethod
    def create_half_async_strategy() -> HalfAsyncStrategy:
        """Workers wait for their own gradients alone."""
        return HalfAsyncStrategy()

    @staticmethod
    def create_async_strategy() -> AsyncStrategy:
        """Nobody waits."""
        return AsyncStrategy()

    @staticmethod
    def create_geo_strategy(update_frequency: int = 100) -> GeoStrategy:
        """Copies that exchange what changed."""
        return GeoStrategy(update_frequency)


class TrainerRuntimeConfig:
    """Tuned the threads that sent gradients; nothing of it changes a result."""

    def __init__(self) -> None:
        note("TrainerRuntimeConfig", "gradients travel by other threads here.")


__all__ = [
    "AsyncStrategy",
    "DistributedStrategy",
    "GeoStrategy",
    "HalfAsyncStrategy",
    "StrategyFactory",
    "SyncStrategy",
    "TrainerRuntimeConfig",
]

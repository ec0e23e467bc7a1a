"""``paddle.distributed.fleet.dataset``."""

from fleetx.compat.paddle.distributed.datasets import InMemoryDataset, QueueDataset

__all__ = ["InMemoryDataset", "QueueDataset"]

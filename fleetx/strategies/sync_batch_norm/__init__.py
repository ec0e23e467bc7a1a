"""Synchronised batch normalisation: statistics are those of the samples of all replicas."""

from fleetx.strategies.sync_batch_norm.strategy import SyncBatchNorm

__all__ = ["SyncBatchNorm"]

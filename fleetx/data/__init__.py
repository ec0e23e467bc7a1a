"""Readers: every worker gets its share of any `DataLoader`, in step with the others."""

from fleetx.data.loader import DistributedLoader, distributed_loader

__all__ = ["DistributedLoader", "distributed_loader"]

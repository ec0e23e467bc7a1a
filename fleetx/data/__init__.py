"""Readers: every worker gets its share of any `DataLoader`, in step with the others."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetx.data.loader import DistributedLoader, distributed_loader

__all__ = ["DistributedLoader", "distributed_loader"]


def __getattr__(name: str) -> Any:
    # A pipe_command starts a process for each file, which had better not load torch for one class.
    if name not in __all__:
        raise AttributeError(f"module 'fleetx.data' has no attribute {name!r}")
    return getattr(importlib.import_module("fleetx.data.loader"), name)

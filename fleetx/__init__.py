"""Distributed training for PyTorch with one declarative object: ``import fleetx as fleet``."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetx.config.block import BuildStrategy, ExecutionStrategy
    from fleetx.config.distributed_strategy import DistributedStrategy
    from fleetx.data import distributed_loader
    from fleetx.engine.optimizer import DistributedOptimizer
    from fleetx.engine.session import distributed_model, distributed_optimizer, init
    from fleetx.plan.error import PlanError

__version__ = "0.1.0"

# Rooms load on first use, so that importing fleetx costs next to nothing over importing torch.
_HOMES = {
    "fleetx.config.block": ("BuildStrategy", "ExecutionStrategy"),
    "fleetx.config.distributed_strategy": ("DistributedStrategy",),
    "fleetx.data": ("distributed_loader",),
    "fleetx.engine.optimizer": ("DistributedOptimizer",),
    "fleetx.engine.session": ("distributed_model", "distributed_optimizer", "init"),
    "fleetx.plan.error": ("PlanError",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BuildStrategy",
    "DistributedOptimizer",
    "DistributedStrategy",
    "ExecutionStrategy",
    "PlanError",
    "distributed_loader",
    "distributed_model",
    "distributed_optimizer",
    "init",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fleetx' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])

"""``paddle.fluid.parallel_executor``."""

from fleetx.compat.running import ParallelExecutor
from fleetx.compat.strategies import BuildStrategy, ExecutionStrategy

__all__ = ["BuildStrategy", "ExecutionStrategy", "ParallelExecutor"]

"""``paddle.fluid.compiler``."""

from fleetx.compat.strategies import BuildStrategy, CompiledProgram, ExecutionStrategy

__all__ = ["BuildStrategy", "CompiledProgram", "ExecutionStrategy"]

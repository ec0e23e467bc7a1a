"""``paddle.fluid.transpiler``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.fluid.transpiler.distribute_transpiler": (
            "DistributeTranspiler DistributeTranspilerConfig"
        ),
        "paddle.fluid.transpiler.ps_dispatcher": "HashName RoundRobin",
        "paddle.fluid.tuning": "memory_optimize release_memory",
    },
    modules=["collective", "details", "distribute_transpiler", "ps_dispatcher"],
)

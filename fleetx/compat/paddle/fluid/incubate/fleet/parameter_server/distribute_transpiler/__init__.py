"""``….parameter_server.distribute_transpiler``: workers that exchange through servers."""

from fleetx.compat.tables import table

_HERE = "paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler"

__getattr__, __dir__ = table(
    __name__,
    {
        f"{_HERE}.transpiler_fleet": "fleet DistributedTranspiler TranspilerOptimizer",
        f"{_HERE}.distributed_strategy": (
            "StrategyFactory TrainerRuntimeConfig SyncStrategy AsyncStrategy HalfAsyncStrategy "
            "GeoStrategy DistributedStrategy"
        ),
        "fleet_strategies": "DistributeTranspilerConfig",
    },
    modules=["distributed_strategy"],
)

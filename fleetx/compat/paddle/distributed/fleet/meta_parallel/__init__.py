"""``paddle.distributed.fleet.meta_parallel``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "cut_layers": (
            "ColumnParallelLinear RowParallelLinear VocabParallelEmbedding ParallelCrossEntropy"
        ),
        "pipelines": "LayerDesc SharedLayerDesc PipelineLayer PipelineParallel=PipelineModel",
        "paddle.distributed.fleet.meta_parallel.random": (
            "get_rng_state_tracker RNGStatesTracker model_parallel_random_seed"
        ),
    },
    modules=["parallel_layers", "random", "sharding"],
)

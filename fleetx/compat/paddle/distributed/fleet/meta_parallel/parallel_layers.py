"""``paddle.distributed.fleet.meta_parallel.parallel_layers``."""

from fleetx.compat.cut_layers import (
    ColumnParallelLinear,
    ParallelCrossEntropy,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from fleetx.compat.layer_descs import LayerDesc, SharedLayerDesc
from fleetx.compat.paddle.distributed.fleet.meta_parallel.random import (
    RNGStatesTracker,
    get_rng_state_tracker,
    model_parallel_random_seed,
)
from fleetx.compat.pipelines import PipelineLayer

__all__ = [
    "ColumnParallelLinear",
    "LayerDesc",
    "ParallelCrossEntropy",
    "PipelineLayer",
    "RNGStatesTracker",
    "RowParallelLinear",
    "SharedLayerDesc",
    "VocabParallelEmbedding",
    "get_rng_state_tracker",
    "model_parallel_random_seed",
]

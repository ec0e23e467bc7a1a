"""Options of strategies whose file does not exist yet.

They are known, checked, saved and loaded like all others; ``compose`` refuses to switch them on.
A strategy's file takes its class away from here.
"""

from dataclasses import dataclass
from typing import Annotated

from fleetx.plan.option import Above, AtLeast, Below, Config, OneOf, Unset

Count = Annotated[int, AtLeast(1)]
Names = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Pipeline(Config):
    """Layers spread over ranks; a batch flows through in micro-batches."""

    micro_batch_size: Count = 1
    accumulate_steps: Count = 1
    schedule_mode: Annotated[str, OneOf(("1F1B", "F-then-B", "interleaved", "zero-bubble"))] = (
        "1F1B"
    )
    p2p_cache_shape: bool = True
    enable_partial_send_recv: bool = True


Segmentation = Annotated[str, OneOf(("segment_broadcast_MB", "segment_anchors"))]


@dataclass(frozen=True, kw_only=True)
class Sharding(Config):
    """Parameters, gradients and optimizer state spread over ranks."""

    sharding_segment_strategy: Segmentation = "segment_broadcast_MB"
    segment_broadcast_MB: Annotated[float, Above(0)] = 32.0
    segment_anchors: Names = ()
    sharding_degree: Annotated[int, Unset(-1), AtLeast(1)] = -1
    mp_degree: Count = 1
    dp_degree: Count = 1
    hybrid_dp: bool = False
    gradient_merge_acc_step: Count = 1
    optimize_offload: bool = False
    pp_allreduce_in_optimize: bool = False
    pp_degree: Count = 1
    optimize_cast: bool = False
    stage: Annotated[int, AtLeast(1), Below(4)] = 3
    enable_tuning: bool = False
    use_calc_stream: bool = False


@dataclass(frozen=True, kw_only=True)
class TensorParallel(Config):
    """Single layers spread over ranks."""

    tensor_parallel_degree: Count = 1
    tensor_init_seed: Annotated[int, AtLeast(-1)] = -1


PENDING: dict[str, type[Config]] = {
    "pipeline": Pipeline,
    "sharding": Sharding,
    "tensor_parallel": TensorParallel,
}

for _name, _config in PENDING.items():
    _config.label = f"{_name}_configs"

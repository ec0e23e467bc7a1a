"""Options of strategies whose file does not exist yet.

They are known, checked, saved and loaded like all others; ``compose`` refuses to switch them on.
A strategy's file takes its class away from here.
"""

from dataclasses import dataclass
from typing import Annotated

from typing_extensions import override

from fleetx.plan.option import Above, AtLeast, Below, Config, OneOf, Unset

Count = Annotated[int, AtLeast(1)]
Names = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Amp(Config):
    """Mixed precision."""

    init_loss_scaling: Annotated[float, Above(0)] = 32768.0
    incr_every_n_steps: Count = 1000
    decr_every_n_nan_or_inf: Count = 2
    incr_ratio: Annotated[float, Above(1)] = 2.0
    decr_ratio: Annotated[float, Above(0), Below(1)] = 0.5
    use_dynamic_loss_scaling: bool = True
    custom_white_list: Names = ()
    custom_black_list: Names = ()
    custom_black_varnames: Names = ()
    use_pure_fp16: bool = False
    use_fp16_guard: bool = True
    use_optimizer_fp16: bool = False
    use_pure_bf16: bool = False

    @override
    def consistent(self) -> None:
        """Refuse an operator that is on both lists."""
        if both := set(self.custom_white_list) & set(self.custom_black_list):
            raise ValueError(
                f"amp_configs names {sorted(both)} in custom_white_list and in custom_black_list, "
                "so it would have to run in both precisions; keep it in one of them."
            )


@dataclass(frozen=True, kw_only=True)
class Recompute(Config):
    """Recomputation of activations in the backward pass."""

    checkpoints: Names = ()
    enable_offload: bool = False
    checkpoint_shape: Annotated[tuple[int, ...], AtLeast(1)] = ()
    enable_tuning: bool = False


@dataclass(frozen=True, kw_only=True)
class DGC(Config):
    """Deep gradient compression."""

    rampup_begin_step: Annotated[int, AtLeast(0)] = 0
    rampup_step: Count = 1
    sparsity: Annotated[tuple[float, ...], AtLeast(0), Below(1)] = (0.999,)


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


@dataclass(frozen=True, kw_only=True)
class ASync(Config):
    """Parameter servers that do not wait for slow workers."""

    k_steps: Annotated[int, AtLeast(-1)] = -1
    max_merge_var_num: Count = 1
    send_queue_size: Count = 16
    independent_recv_thread: bool = False
    min_send_grad_num_before_recv: Count = 1
    thread_pool_size: Count = 1
    send_wait_times: Count = 1
    runtime_split_send_recv: bool = False
    launch_barrier: bool = True
    heter_worker_device_guard: str = "cpu"
    lr_decay_steps: Count = 10
    use_ps_gpu: Annotated[int, AtLeast(0)] = 0


@dataclass(frozen=True, kw_only=True)
class Lars(Config):
    """Layer-wise adaptive rates for momentum."""

    lars_coeff: Annotated[float, Above(0)] = 0.001
    lars_weight_decay: Annotated[float, AtLeast(0)] = 0.0005
    epsilon: Annotated[float, AtLeast(0)] = 0.0
    exclude_from_weight_decay: Names = ()


@dataclass(frozen=True, kw_only=True)
class Lamb(Config):
    """Layer-wise adaptive rates for Adam."""

    lamb_weight_decay: Annotated[float, AtLeast(0)] = 0.01
    exclude_from_weight_decay: Names = ()


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
    "amp": Amp,
    "recompute": Recompute,
    "dgc": DGC,
    "lars": Lars,
    "lamb": Lamb,
    "pipeline": Pipeline,
    "a_sync": ASync,
    "sharding": Sharding,
    "tensor_parallel": TensorParallel,
}

for _name, _config in PENDING.items():
    _config.label = f"{_name}_configs"

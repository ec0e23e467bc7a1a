"""Options of the whole job: those that belong to no single strategy.

One that differs from its default must be obeyed by a strategy of the plan, or ``compose`` refuses.
"""

from dataclasses import dataclass
from typing import Annotated

from fleetx.plan.option import Above, AtLeast, Config, OneOf

Count = Annotated[int, AtLeast(1)]


@dataclass(frozen=True, kw_only=True)
class JobOptions(Config):
    """The top level of ``DistributedStrategy``, without the switches of strategies."""

    mode: Annotated[str, OneOf(("collective", "ps"))] = "collective"
    """How workers exchange: among themselves, or through parameter servers."""
    elastic: bool = False
    auto: bool = False
    """Let fleetx choose the strategies."""
    sync_nccl_allreduce: bool = True
    nccl_comm_num: Count = 1
    use_hierarchical_allreduce: bool = False
    hierarchical_allreduce_inter_nranks: Count = 1
    fuse_all_reduce_ops: bool = True
    """Pack gradients into buckets; False sends every gradient by itself."""
    fuse_grad_size_in_MB: Count = 32
    """The size of a bucket."""
    fuse_grad_size_in_TFLOPS: Annotated[float, Above(0)] = 50.0
    cudnn_exhaustive_search: bool = False
    conv_workspace_size_limit: Annotated[int, AtLeast(0)] = 512
    cudnn_batchnorm_spatial_persistent: bool = False
    last_comm_group_size_MB: Annotated[float, Above(0)] = 1.0
    find_unused_parameters: bool = False
    """Train models in which a batch does not reach every parameter."""
    without_graph_optimization: bool = True
    fuse_grad_size_in_num: Count = 8
    calc_comm_same_stream: bool = False
    asp: bool = False
    fuse_grad_merge: bool = False
    semi_auto: bool = False
    adam_d2sum: bool = False
    auto_search: bool = False
    heter_ccl_mode: bool = False
    is_fl_ps_mode: bool = False
    with_coordinator: bool = False
    qat: bool = False
    split_data: bool = True


@dataclass(frozen=True, kw_only=True)
class HybridConfig(Config):
    """The degrees of a mesh in one place; -1 takes what the others leave."""

    label = "hybrid_configs"
    dp_degree: Annotated[int, AtLeast(-1)] = -1
    mp_degree: Count = 1
    pp_degree: Count = 1
    sharding_degree: Count = 1
    sep_degree: Count = 1


@dataclass(frozen=True, kw_only=True)
class AutoConfig(Config):
    """What `strategy.auto` may do, and for which machines."""

    label = "auto_configs"
    allow: tuple[str, ...] = ()
    """Strategies that change the mathematics of training and may be chosen all the same, such as
    localsgd, dgc or fp16_allreduce."""
    cluster: str = ""
    """A file that describes the machines; empty: they are measured."""
    trials: Annotated[int, AtLeast(0)] = 5
    """Plans that are run for a few updates before one is chosen, where machines are measured."""


@dataclass(frozen=True, kw_only=True)
class GradientScaleConfig(Config):
    """How gradients of several workers become one."""

    label = "gradient_scale_configs"
    scale_strategy: Annotated[str, OneOf(("avg", "sum", "customized"))] = "avg"
    scale_gradient: bool = False


@dataclass(frozen=True, kw_only=True)
class BuildConfig(Config):
    """How a program is rewritten before it runs."""

    label = "build_strategy"
    enable_sequential_execution: bool = False
    fuse_elewise_add_act_ops: bool = False
    fuse_bn_act_ops: bool = False
    fuse_relu_depthwise_conv: bool = False
    fuse_broadcast_ops: bool = False
    fuse_all_optimizer_ops: bool = False
    enable_inplace: bool = False
    enable_backward_optimizer_op_deps: bool = True
    cache_runtime_context: bool = False
    fuse_bn_add_act_ops: bool = True
    enable_auto_fusion: bool = False
    enable_addto: bool = False
    fix_op_run_order: bool = False
    allow_cuda_graph_capture: bool = False
    reduce_strategy: Annotated[int, AtLeast(0)] = 0
    fuse_gemm_epilogue: bool = False
    debug_graphviz_path: str = ""
    fused_attention: bool = False
    fused_feedforward: bool = False


@dataclass(frozen=True, kw_only=True)
class ExecutionConfig(Config):
    """How a program is run."""

    label = "execution_strategy"
    num_threads: Count = 1
    num_iteration_per_drop_scope: Count = 10
    num_iteration_per_run: Count = 1
    use_thread_barrier: bool = False


BLOCKS: dict[str, type[Config]] = {
    block.label: block
    for block in (AutoConfig, HybridConfig, GradientScaleConfig, BuildConfig, ExecutionConfig)
}
"""Blocks of options without a switch."""

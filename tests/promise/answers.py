"""What each option does, for those who do not believe it: the observer of every option."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

AUTO = object()
"""Any legal value that is not the default."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How to see that an option is in force; its own switch is always on."""

    company: Mapping[str, Any] = field(default_factory=dict)
    """What else is set, in the run that is compared with, too."""
    value: Any = AUTO
    workers: int = 2
    model: str = "net"
    adam: bool = False


@dataclass(frozen=True, kw_only=True)
class Changes(Answer):
    """Training goes on, and something that can be seen from outside is not as without it."""

    what: str
    """A field of ``observed.Seen``."""
    against: Mapping[str, Any] | None = None
    """What the other run sets instead of the company."""


@dataclass(frozen=True, kw_only=True)
class Refused(Answer):
    """The run stops with a sentence, at the assignment, in the plan or before the first batch."""

    words: str


@dataclass(frozen=True, kw_only=True)
class Always:
    """True of every run, so that asking for it changes nothing; asking for the opposite would."""

    why: str


def changes(what: str, company: Mapping[str, Any] | None = None, **more: Any) -> Changes:
    return Changes(what=what, company=company or {}, **more)


def refused(words: str, company: Mapping[str, Any] | None = None, **more: Any) -> Refused:
    return Refused(words=words, company=company or {}, **more)


NOBODY = refused("cannot be in force: ")
"""An option of Paddle for which there is nothing here."""
PIPELINE = {
    "pipeline": True,
    "pipeline_configs": {"split": ("mlp",), "accumulate_steps": 2},
    "hybrid_configs": {"pp_degree": 2},
}
"""Batch norm wants micro-batches of several samples."""
BALANCED = {"pipeline": True, "pipeline_configs": {"accumulate_steps": 4}}
CUT = {"column": ("fc1",), "row": ("fc2",)}
TENSORS = {"tensor_parallel": True, "tensor_parallel_configs": CUT}
CLUSTER = str(Path(__file__).parent.parent / "auto" / "two_cpus.yaml")
KEPT = dict.fromkeys(["pipeline", "tensor_parallel", "gradient_merge"], False)
"""Leaves batches as they are."""
AUTOMATIC = {"auto_configs": {"cluster": CLUSTER}, **KEPT}
MERGED = {"gradient_merge_configs": {"k_steps": 2}}
OVERFLOW = {"amp_configs": {"init_loss_scaling": 2.0**100}}
SPARSE = {"dgc_configs": {"sparsity": (0.5,)}}
HALF = {"sharding": True, "sharding_configs": {"sharding_degree": 2}}
ON_HOPPER = refused("products in float8 need an NVIDIA GPU of the Hopper generation")
ON_CARDS = refused("CUDA graphs are a feature of NVIDIA GPUs", workers=1)

SWITCHES: dict[str, Answer | Always] = {
    "adaptive_localsgd": changes("collectives"),
    "amp": changes("weights"),
    "clip": changes("weights", {"clip_configs": {"limit": 0.01}}),
    "compile": changes("compiled"),
    "cuda_graph": ON_CARDS,
    "dgc": changes("collectives", SPARSE),
    "fp16_allreduce": changes("collectives"),
    "fp8": ON_HOPPER,
    "gradient_merge": changes("updates", MERGED),
    "lamb": changes("weights", adam=True),
    "lars": changes("weights"),
    "localsgd": changes("collectives"),
    "pipeline": changes("held", {"pipeline_configs": {"split": ("mlp",), "accumulate_steps": 2}}),
    "recompute": changes("calls", {"recompute_configs": {"checkpoints": ("body",)}}),
    "sharding": changes("held"),
    "sync_batch_norm": changes("collectives"),
    "tensor_parallel": changes("held", {"tensor_parallel_configs": CUT}, model="words"),
}

JOB: dict[str, Answer | Always] = {
    "mode": NOBODY,
    "elastic": NOBODY,
    "auto": changes("said", AUTOMATIC, against={}),
    "sync_nccl_allreduce": NOBODY,
    "nccl_comm_num": changes("groups", {"fuse_all_reduce_ops": False}),
    "use_hierarchical_allreduce": changes(
        "collectives", {"hierarchical_allreduce_inter_nranks": 2}, against={}, workers=4
    ),
    "hierarchical_allreduce_inter_nranks": changes(
        "collectives", {"use_hierarchical_allreduce": True}, against={}, workers=4
    ),
    "fuse_all_reduce_ops": changes("collectives"),
    "fuse_grad_size_in_MB": changes("collectives", value=1, model="wide"),
    "fuse_grad_size_in_TFLOPS": NOBODY,
    "cudnn_exhaustive_search": NOBODY,
    "conv_workspace_size_limit": NOBODY,
    "cudnn_batchnorm_spatial_persistent": NOBODY,
    "last_comm_group_size_MB": NOBODY,
    "find_unused_parameters": changes("error", model="forked"),
    "without_graph_optimization": NOBODY,
    "fuse_grad_size_in_num": NOBODY,
    "calc_comm_same_stream": NOBODY,
    "asp": NOBODY,
    "fuse_grad_merge": NOBODY,
    "semi_auto": NOBODY,
    "adam_d2sum": NOBODY,
    "auto_search": NOBODY,
    "heter_ccl_mode": NOBODY,
    "is_fl_ps_mode": NOBODY,
    "with_coordinator": NOBODY,
    "qat": NOBODY,
    "split_data": NOBODY,
    "hybrid_configs.dp_degree": changes("held", {"sharding": True}, value=2, workers=4),
    "hybrid_configs.mp_degree": changes("held", TENSORS, model="words", workers=4),
    "hybrid_configs.pp_degree": changes("held", BALANCED, workers=4),
    "hybrid_configs.sharding_degree": changes("held", {"sharding": True}, workers=4),
    "hybrid_configs.sep_degree": NOBODY,
    "auto_configs.allow": refused("Set strategy.auto = True", value=("localsgd",)),
    "auto_configs.trials": refused("Set strategy.auto = True", value=2),
    "auto_configs.cluster": refused("Set strategy.auto = True", value=CLUSTER),
    "gradient_scale_configs.scale_strategy": NOBODY,
    "gradient_scale_configs.scale_gradient": NOBODY,
}

KEYS: dict[str, Answer | Always] = {
    "adaptive_localsgd_configs.init_k_steps": changes("collectives", value=3),
    "adaptive_localsgd_configs.begin_step": changes(
        "collectives", {"adaptive_localsgd_configs": {"init_k_steps": 9}}, value=3
    ),
    "amp_configs.init_loss_scaling": changes("state"),
    "amp_configs.incr_every_n_steps": changes("state", value=2),
    "amp_configs.decr_every_n_nan_or_inf": changes("state", OVERFLOW, value=1),
    "amp_configs.incr_ratio": changes("state", {"amp_configs": {"incr_every_n_steps": 2}}),
    "amp_configs.decr_ratio": changes("state", OVERFLOW),
    "amp_configs.use_dynamic_loss_scaling": changes("state"),
    "amp_configs.custom_white_list": changes("weights", value=("layer_norm",), model="words"),
    "amp_configs.custom_black_list": changes("weights", value=("linear",)),
    "amp_configs.custom_black_varnames": changes("weights", value=("head",)),
    "amp_configs.use_pure_fp16": changes("weights"),
    "amp_configs.use_fp16_guard": changes("weights", {"amp_configs": {"use_pure_bf16": True}}),
    "amp_configs.use_optimizer_fp16": refused("would update weights in 16 bits"),
    "amp_configs.use_pure_bf16": changes("weights"),
    "amp_configs.dtype": changes("weights"),
    "clip_configs.by": changes("weights", {"clip_configs": {"limit": 0.01}}),
    "clip_configs.limit": changes("weights", value=0.01),
    "clip_configs.lowest": changes(
        "weights", {"clip_configs": {"by": "value", "limit": 0.01}}, value=-0.001
    ),
    "compile_configs.backend": changes("compiled", value="eager"),
    "compile_configs.mode": changes("compiled"),
    "compile_configs.dynamic": changes("compiled"),
    "compile_configs.fullgraph": changes("compiled"),
    "compile_configs.unit": changes("compiled", value="model", model="gpt2"),
    "compile_configs.combo_kernels": changes("compiled"),
    "compile_configs.criterion": changes("compiled", value=False),
    "cuda_graph_configs.warmup": ON_CARDS,
    "cuda_graph_configs.max_graphs": ON_CARDS,
    "dgc_configs.rampup_begin_step": changes("collectives", SPARSE),
    "dgc_configs.rampup_step": changes(
        "collectives", {"dgc_configs": {"sparsity": (0.5, 0.9)}}, value=4
    ),
    "dgc_configs.sparsity": changes("collectives", value=(0.5,)),
    "dgc_configs.local_grad_clip_norm": changes("weights", SPARSE, value=1e-4),
    "fp8_configs.scales": ON_HOPPER,
    "fp8_configs.layers": replace(ON_HOPPER, value=("body",)),
    "fp8_configs.exclude": replace(ON_HOPPER, value=("mlp",)),
    "gradient_merge_configs.k_steps": changes("updates"),
    "gradient_merge_configs.avg": changes("weights", MERGED),
    "lamb_configs.lamb_weight_decay": changes("weights", adam=True),
    "lamb_configs.exclude_from_weight_decay": changes("weights", value=("bias",), adam=True),
    "lars_configs.lars_coeff": changes("weights"),
    "lars_configs.lars_weight_decay": changes("weights"),
    "lars_configs.epsilon": changes("weights"),
    "lars_configs.exclude_from_weight_decay": changes("weights", value=("bias",)),
    "localsgd_configs.k_steps": changes("collectives"),
    "localsgd_configs.begin_step": changes(
        "collectives", {"localsgd_configs": {"k_steps": 4}}, value=3
    ),
    "pipeline_configs.micro_batch_size": changes(
        "calls", {"pipeline_configs": {"split": ("mlp",), "micro_batch_size": 4}}, value=2
    ),
    "pipeline_configs.accumulate_steps": changes("calls", PIPELINE, value=4),
    "pipeline_configs.schedule_mode": changes("calls", PIPELINE),
    "pipeline_configs.p2p_cache_shape": refused("torch's pipelining always works this way"),
    "pipeline_configs.enable_partial_send_recv": refused("always works this way"),
    "pipeline_configs.split": changes("held", PIPELINE, value=("head",)),
    "pipeline_configs.stages_per_rank": changes(
        "error",
        {
            "pipeline_configs": {
                "schedule_mode": "zero-bubble",
                "accumulate_steps": 4,
                "split": ("body", "mlp", "head"),
            }
        },
    ),
    "recompute_configs.checkpoints": changes(
        "calls", {"recompute_configs": {"checkpoints": ("mlp",)}}, value=("body",)
    ),
    "recompute_configs.enable_offload": changes(
        "saved", {"recompute_configs": {"checkpoints": ("body", "mlp")}}
    ),
    "recompute_configs.checkpoint_shape": refused(
        "'body' returned [8, 128]", {"recompute_configs": {"checkpoints": ("body",)}}, value=(8, 4)
    ),
    "recompute_configs.enable_tuning": refused(
        "recompute has nothing to tune", {"recompute_configs": {"checkpoints": ("body",)}}
    ),
    "sharding_configs.sharding_segment_strategy": refused("without 'segment_anchors' would leave"),
    "sharding_configs.segment_broadcast_MB": changes("collectives", value=0.01),
    "sharding_configs.segment_anchors": changes("collectives", value=("body",)),
    "sharding_configs.sharding_degree": changes("held", value=2, workers=4),
    "sharding_configs.mp_degree": changes("error", TENSORS, model="words", workers=4),
    "sharding_configs.dp_degree": changes("held", workers=4),
    "sharding_configs.hybrid_dp": refused("asks for several copies of the sharded model"),
    "sharding_configs.gradient_merge_acc_step": changes("updates"),
    "sharding_configs.optimize_offload": changes("said"),
    "sharding_configs.pp_allreduce_in_optimize": changes("collectives", PIPELINE, workers=4),
    "sharding_configs.pp_degree": changes("error", BALANCED, workers=4),
    "sharding_configs.optimize_cast": refused("weights keep 32 bits between steps"),
    "sharding_configs.stage": changes("collectives"),
    "sharding_configs.enable_tuning": refused("there is nothing to tune"),
    "sharding_configs.use_calc_stream": refused("streams of its own"),
    "tensor_parallel_configs.tensor_parallel_degree": changes(
        "held", TENSORS, model="words", workers=4
    ),
    "tensor_parallel_configs.tensor_init_seed": changes("weights", TENSORS, value=7, model="words"),
    "tensor_parallel_configs.plan": changes(
        "held",
        {"tensor_parallel_configs": {"vocabulary": ("embed",)}},
        value="mlp",
        model="words",
    ),
    "tensor_parallel_configs.column": changes(
        "held", {"tensor_parallel_configs": {"row": ("fc2",)}}, value=("fc1",), model="words"
    ),
    "tensor_parallel_configs.row": changes(
        "held", {"tensor_parallel_configs": {"column": ("fc1",)}}, value=("fc2",), model="words"
    ),
    "tensor_parallel_configs.vocabulary": changes("held", TENSORS, value=("embed",), model="words"),
    "tensor_parallel_configs.sequence": changes(
        "collectives", TENSORS, value=("norm",), model="words"
    ),
}

WORKERS = SWITCHES | JOB | KEYS
"""Of jobs in which workers exchange among themselves."""

FUSED = changes("compiled")
"""Lets ``torch.compile`` fuse whatever it can."""
IN_ORDER = Always(why="Operators run one after another, in the same order at every run.")

PROGRAMS: dict[str, Answer | Always] = {
    "build_strategy.enable_sequential_execution": IN_ORDER,
    "build_strategy.fuse_elewise_add_act_ops": FUSED,
    "build_strategy.fuse_bn_act_ops": FUSED,
    "build_strategy.fuse_relu_depthwise_conv": FUSED,
    "build_strategy.fuse_broadcast_ops": Always(
        why="What is broadcast travels in buckets, in every job and in every program."
    ),
    "build_strategy.fuse_all_optimizer_ops": changes("fused"),
    "build_strategy.enable_inplace": changes("code"),
    "build_strategy.enable_backward_optimizer_op_deps": refused("need all gradients"),
    "build_strategy.cache_runtime_context": Always(
        why="The lowered form of a program is kept from its first run on."
    ),
    "build_strategy.fuse_bn_add_act_ops": Always(
        why="Nothing is fused unless another option asks for it, and then False is refused."
    ),
    "build_strategy.enable_auto_fusion": FUSED,
    "build_strategy.enable_addto": Always(why="torch adds gradients up in place, always."),
    "build_strategy.fix_op_run_order": IN_ORDER,
    "build_strategy.allow_cuda_graph_capture": refused("needs a CUDA device"),
    "build_strategy.reduce_strategy": refused("that is strategy.sharding here"),
    "build_strategy.fuse_gemm_epilogue": FUSED,
    "build_strategy.debug_graphviz_path": changes("drawn"),
    "build_strategy.fused_attention": FUSED,
    "build_strategy.fused_feedforward": FUSED,
    "execution_strategy.num_threads": changes("threads"),
    "execution_strategy.num_iteration_per_drop_scope": Always(
        why="Values are freed as soon as nobody needs them, so that no scope is left to be dropped."
    ),
    "execution_strategy.num_iteration_per_run": changes("weights"),
    "execution_strategy.use_thread_barrier": refused("operators run one after another here"),
}
"""Of programs; a model that is none refuses all of them."""

HALF_ASYNC = {"a_sync_configs": {"half_async": True}}
NOT_HERE = refused("has no effect in this way of exchanging")

SERVERS: dict[str, Answer | Always] = {
    "a_sync": changes("senders"),
    "a_sync_configs.k_steps": changes("pushes", value=2),
    "a_sync_configs.half_async": changes("senders"),
    "a_sync_configs.max_staleness": changes("ahead", value=0),
    "a_sync_configs.max_unsent": changes("ahead", value=3),
    "a_sync_configs.max_merge_var_num": changes("pushes", HALF_ASYNC),
    "a_sync_configs.send_queue_size": changes(
        "ahead", {"a_sync_configs": {"max_unsent": 4}}, value=1
    ),
    "a_sync_configs.independent_recv_thread": NOT_HERE,
    "a_sync_configs.min_send_grad_num_before_recv": changes("reads"),
    "a_sync_configs.thread_pool_size": NOT_HERE,
    "a_sync_configs.send_wait_times": NOT_HERE,
    "a_sync_configs.runtime_split_send_recv": NOT_HERE,
    "a_sync_configs.launch_barrier": NOT_HERE,
    "a_sync_configs.heter_worker_device_guard": refused("has no effect", value="gpu"),
    "a_sync_configs.lr_decay_steps": changes(
        "weights", {"a_sync_configs": {"half_async": True, "lr_decay_rate": 0.5}}, value=2
    ),
    "a_sync_configs.lr_decay_rate": changes(
        "weights", {"a_sync_configs": {"half_async": True}}, value=0.01
    ),
    "a_sync_configs.use_ps_gpu": NOT_HERE,
    "a_sync_configs.split_method": changes("shares"),
    "a_sync_configs.slice_var_up": changes("shares"),
    "a_sync_configs.min_block_size": changes("shares", value=100_000),
}
"""Of jobs with parameter servers."""

ALL = WORKERS | PROGRAMS | SERVERS

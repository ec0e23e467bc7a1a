"""What ``BuildStrategy`` and ``ExecutionStrategy`` do to a program here: acted upon, or refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fleetx.config.job_options import BuildConfig, ExecutionConfig
from fleetx.plan.error import PlanError

OBEYED = frozenset({"build_strategy", "execution_strategy"})
"""The blocks of a ``DistributedStrategy`` that programs read."""

FUSING = (
    "fuse_elewise_add_act_ops",
    "fuse_bn_act_ops",
    "fuse_relu_depthwise_conv",
    "enable_auto_fusion",
    "fuse_gemm_epilogue",
    "fused_attention",
    "fused_feedforward",
)
"""Each of them lets ``torch.compile`` fuse whatever it can."""

ALWAYS = (
    "enable_sequential_execution",
    "fix_op_run_order",
    "cache_runtime_context",
    "enable_addto",
    "fuse_broadcast_ops",
)
"""True of every program: operators run one after another, in the same order at every run (of those
that were fused, as they are then); lowered forms are kept, gradients are added in place, and what
is broadcast travels in buckets."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """The options that change how a program is run."""

    compile: bool = False
    """Whether ``torch.compile`` fuses operators."""
    cuda_graph: bool = False
    in_place: bool = False
    """Whether activations overwrite their inputs where nobody else needs those."""
    fused_update: bool = False
    """Whether the optimizer moves all parameters in few kernels."""
    drawing: str = ""
    """Where to draw the program."""
    threads: int | None = None
    iterations: int = 1
    """Batches in one call of ``Executor.run``."""


def read(
    build: Mapping[str, Any] | None, execution: Mapping[str, Any] | None, device: torch.device
) -> Build:
    """What the options ask for; raises ``PlanError`` for those that cannot be in force."""
    given = BuildConfig().values() | dict(build or {})
    run = ExecutionConfig().values() | dict(execution or {})
    _refuse(given, run, device)
    compile = any(given[name] for name in FUSING) or given["allow_cuda_graph_capture"]
    if compile:
        _refuse_with_fusion(given)
    return Build(
        compile=compile,
        cuda_graph=given["allow_cuda_graph_capture"],
        in_place=given["enable_inplace"],
        fused_update=given["fuse_all_optimizer_ops"],
        drawing=given["debug_graphviz_path"],
        threads=run["num_threads"] if run["num_threads"] > 1 else None,
        iterations=run["num_iteration_per_run"],
    )


def _refuse(given: Mapping[str, Any], run: Mapping[str, Any], device: torch.device) -> None:
    if given["reduce_strategy"]:
        raise PlanError(
            f"build_strategy.reduce_strategy = {given['reduce_strategy']} gives every parameter "
            "one owner that updates it; that is strategy.sharding here. Leave it at 0."
        )
    if not given["enable_backward_optimizer_op_deps"]:
        raise PlanError(
            "build_strategy.enable_backward_optimizer_op_deps = False lets updates begin before "
            "the backward pass ends, but clipping and loss scaling need all gradients; leave it "
            "True."
        )
    if given["allow_cuda_graph_capture"] and device.type != "cuda":
        raise PlanError(
            "build_strategy.allow_cuda_graph_capture = True needs a CUDA device, and this program "
            f"runs on {device}; leave it False there."
        )
    if run["use_thread_barrier"]:
        raise PlanError(
            "execution_strategy.use_thread_barrier = True is about threads that run one operator "
            "each, and operators run one after another here; leave it False."
        )
    if run["num_threads"] > 1 and device.type == "cuda":
        raise PlanError(
            f"execution_strategy.num_threads = {run['num_threads']} shares operators of a CPU out "
            "to threads, and this program runs on a GPU; leave it at 1."
        )


def _refuse_with_fusion(given: Mapping[str, Any]) -> None:
    if not given["fuse_bn_add_act_ops"]:
        raise PlanError(
            "build_strategy.fuse_bn_add_act_ops = False keeps one kind of operators apart, and "
            "torch.compile fuses all that it can; leave it True, or turn the other fusions off."
        )

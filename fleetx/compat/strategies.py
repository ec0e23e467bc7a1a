"""``BuildStrategy``, ``ExecutionStrategy`` and ``CompiledProgram`` in Paddle's words."""

from typing import Any

import torch
from typing_extensions import override

from fleetx import roles, static
from fleetx.compat.notes import note
from fleetx.compat.programs import ours
from fleetx.config.block import BuildStrategy as NativeBuild
from fleetx.config.block import ExecutionStrategy as NativeExecution
from fleetx.plan.option import annotations
from fleetx.static.run.executions import has_run

_FUSED = [
    "fuse_elewise_add_act_ops",
    "fuse_bn_act_ops",
    "fuse_relu_depthwise_conv",
    "enable_auto_fusion",
    "fuse_gemm_epilogue",
    "fused_attention",
    "fused_feedforward",
    "fuse_bn_add_act_ops",
    "allow_cuda_graph_capture",
]
"""Obeyed on a card, where compiling pays; the results are the same without."""

_TUNED: dict[str, Any] = {
    "memory_optimize": None,
    "async_mode": False,
    "num_trainers": 1,
    "trainer_id": 0,
    "trainers_endpoints": [],
    "remove_unnecessary_lock": True,
    "enable_parallel_graph": False,
    "enable_data_balance": False,
    "enable_sequential_execution": False,
    "use_hierarchical_allreduce": False,
    "hierarchical_allreduce_inter_nranks": 1,
    "nccl_comm_num": 1,
    "fuse_all_reduce_ops": True,
    "mkldnn_enabled_op_types": set(),
    "reduce_strategy": 0,
    "debug_graphviz_path": "",
    "enable_backward_optimizer_op_deps": True,
    "bkcl_comm_num": 1,
    "is_distribution": False,
}
"""Settings of Paddle's executor that change no result, and what they begin with."""

_EXECUTOR: dict[str, Any] = {
    "use_experimental_executor": False,
    "allow_op_delay": False,
    "use_cuda": False,
    "dry_run": False,
    "use_thread_barrier": False,
    "num_iteration_per_drop_scope": 100,
}

_RESULTS = {"gradient_scale_strategy": 0, "sync_batch_norm": False}
"""Settings that change results where several workers train."""


class ReduceStrategy:
    """Whether every worker updates all parameters, or each those that it owns."""

    AllReduce, Reduce, _NoReduce = 0, 1, 2


class GradientScaleStrategy:
    """What the gradient of the loss is multiplied with."""

    CoeffNumDevice, One, Customized = 0, 1, 2


class BuildStrategy(NativeBuild):
    """How a program is rewritten before it runs."""

    ReduceStrategy = ReduceStrategy
    GradientScaleStrategy = GradientScaleStrategy

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        vars(self)["_kept"] = {}

    @override
    def __getattr__(self, name: str) -> Any:
        kept = vars(self).get("_kept", {})
        begins = {**dict.fromkeys(_FUSED, False), "fuse_bn_add_act_ops": True, **_TUNED, **_RESULTS}
        return kept.get(name, begins[name]) if name in begins else super().__getattr__(name)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        if name in _RESULTS and value != _RESULTS[name]:
            _check_alone(name, value)
        if name in _FUSED and torch.cuda.is_available():
            super().__setattr__(name, value)
        if name in _TUNED or (name in _FUSED and not torch.cuda.is_available()):
            note(f"build_strategy.{name}", "it tuned Paddle's executor and changes no result.")
        if name in {*_TUNED, *_RESULTS, *_FUSED}:
            vars(self)["_kept"][name] = value
        else:
            super().__setattr__(name, value)


def _check_alone(name: str, value: Any) -> None:
    if roles.started() and roles.worker_num() > 1:
        instead = (
            "set strategy.sync_batch_norm = True"
            if name == "sync_batch_norm"
            else "scale the loss, or set strategy.gradient_scale_configs"
        )
        raise ValueError(
            f"build_strategy.{name} = {value} speaks of the cards of one process, and workers are "
            f"processes of their own here; {instead} instead."
        )
    note(f"build_strategy.{name}", "one worker trains, so it has nothing to change.")


class ExecutionStrategy(NativeExecution):
    """How a program is run."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        vars(self)["_kept"] = {}

    @override
    def __getattr__(self, name: str) -> Any:
        kept = vars(self).get("_kept", {})
        if name in kept:
            return kept[name]
        return _EXECUTOR[name] if name in _EXECUTOR else super().__getattr__(name)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        if name in _EXECUTOR or name == "num_threads":
            note(f"exec_strategy.{name}", "it tuned Paddle's executor and changes no result.")
            vars(self)["_kept"][name] = value
        else:
            super().__setattr__(name, value)


def _known(given: Any, kind: Any) -> Any:
    """A strategy of fleetx, with what of it acts there."""
    if given is None:
        return None
    explicit = {n: v for n, v in given.explicit().items() if n in annotations(kind.KIND)}
    return kind(explicit)


class CompiledProgram(static.CompiledProgram):
    """What ``Executor.run`` takes instead of the program itself."""

    def __init__(self, program_or_graph: Any, build_strategy: Any = None) -> None:
        inner = getattr(program_or_graph, "program", program_or_graph)
        super().__init__(ours(inner), _known(build_strategy, NativeBuild))

    @override
    def with_data_parallel(
        self,
        loss_name: Any = None,
        build_strategy: Any = None,
        exec_strategy: Any = None,
        share_vars_from: Any = None,
        places: Any = None,
    ) -> "CompiledProgram":
        """The same; on several cards, there is one process for each.

        Args:
            loss_name: the loss that is minimised, which must be the program's.
            build_strategy: how the program is rewritten.
            exec_strategy: how it is run.
            share_vars_from: has no effect: programs share values by their names.
            places: the one place of the process.
        """
        super().with_data_parallel(
            loss_name or None,
            _known(build_strategy, NativeBuild),
            _known(exec_strategy, NativeExecution),
        )
        return self

    def with_inference_optimize(self, config: Any = None) -> "CompiledProgram":
        """The same; nothing is rewritten for use without training."""
        return self

    @override
    def prepared(self) -> static.Program:
        # Options of a second CompiledProgram come too late, and none of them changes a result.
        if self.program.build is not None or has_run(self.program):
            return self.program
        return super().prepared()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.program, name)

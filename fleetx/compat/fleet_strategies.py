"""``DistributedStrategy`` of both generations of Fleet, in the words of fleetx."""

import copy
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from fleetx import roles
from fleetx.compat.notes import note
from fleetx.compat.strategies import BuildStrategy, ExecutionStrategy
from fleetx.config.distributed_strategy import DistributedStrategy as NativeStrategy
from fleetx.config.switchboard import Switchboard
from fleetx.config.transpiler import DistributeTranspilerConfig as NativeTranspiler
from fleetx.plan.compose import Request

TUNED = [
    "sync_nccl_allreduce",
    "nccl_comm_num",
    "use_hierarchical_allreduce",
    "elastic",
    "split_data",
    "hierarchical_allreduce_inter_nranks",
    "fuse_all_reduce_ops",
    "fuse_grad_size_in_MB",
    "fuse_grad_size_in_TFLOPS",
    "cudnn_exhaustive_search",
    "conv_workspace_size_limit",
    "cudnn_batchnorm_spatial_persistent",
    "last_comm_group_size_MB",
    "without_graph_optimization",
    "fuse_grad_size_in_num",
    "calc_comm_same_stream",
    "fuse_grad_merge",
    "heter_ccl_mode",
    "build_strategy",
    "execution_strategy",
]
"""Settings that change no result: whoever can obeys them, and nobody stops for them."""

_native: Any = Switchboard

_UNDERSCORED = {
    "_fuse_grad_size_in_TFLOPS": "fuse_grad_size_in_TFLOPS",
    "_calc_comm_same_stream": "calc_comm_same_stream",
    "is_with_coordinator": "with_coordinator",
}

_CHANGES = {
    "incr_every_n_steps": 1000,
    "decr_every_n_nan_or_inf": 2,
    "incr_ratio": 2.0,
    "decr_ratio": 0.8,
}
"""How a loss scale changes, by Paddle's defaults; the last one differs from ours."""
_OF_BFLOAT16: dict[str, tuple[float, ...]] = {
    "init_loss_scaling": (2.0**15, 1.0),
    "use_dynamic_loss_scaling": (True, False),
}
"""Paddle's defaults of what bfloat16 has no use for, and the values that say so."""

_OTHER_BLOCKS = {
    "trainer_desc_configs": "it tells Paddle's workers what to dump; fetch what you look for.",
    "sparse_table_configs": "tables of servers are described by their layers and the optimizer.",
    "downpour_table_param": "tables of servers are described by their layers and the optimizer.",
    "fs_client_param": "files are read where the script says.",
}
"""Blocks of settings that Paddle's own parts read: they are kept, noted, and change nothing."""

_OTHER_KEYS = {
    "sharding_configs": {"acc_steps": "gradient_merge_acc_step", "pure_dp_degree": "dp_degree"},
}
"""Keys that scripts of the examples were written with before a release renamed them."""

_IDLE_KEYS = {
    "sharding_configs": ("schedule_mode", "pp_bz", "_dp_as_optimizer_sharding"),
    "recompute_configs": ("refined_ops_patterns",),
    "hybrid_configs": ("mp_configs", "pp_configs", "sharding_configs"),
}
"""Keys that tune how stages and exchanges take turns."""

_BEGINS = {"nccl_comm_num": 1, "hierarchical_allreduce_inter_nranks": 1}
"""Numbers below these meant the same as these."""


class DistributedStrategy(NativeStrategy):
    """Switches and options of Fleet 2, as its scripts set them."""

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        name = _UNDERSCORED.get(name, name)
        if name == "auto" and isinstance(value, bool):
            self._writable()
            vars(self)["_auto"] = value
            return
        if name in _OTHER_BLOCKS:
            note(f"strategy.{name}", _OTHER_BLOCKS[name])
            vars(self)[f"_{name}"] = dict(value)
            return
        if name in _BEGINS and isinstance(value, int):
            value = max(value, _BEGINS[name])
        if isinstance(value, Mapping):
            value = _options(name, value)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        name = _UNDERSCORED.get(name, name)
        if name == "auto":
            return bool(vars(self).get("_auto"))
        if name in _OTHER_BLOCKS:
            return vars(self).get(f"_{name}", {})
        if name == "build_strategy":
            return BuildStrategy(self._blocks.setdefault(name, {}), self._writable)
        if name == "execution_strategy":
            return ExecutionStrategy(self._blocks.setdefault(name, {}), self._writable)
        return _native.__getattr__(self, name)

    @override
    def __getstate__(self) -> dict[str, Any]:
        kept: dict[str, Any] = _native.__getstate__(self)
        return {**kept, "_auto": self.auto}

    @override
    def save_to_prototxt(self, output: str | os.PathLike[str]) -> None:
        """Write what was set by hand, ``auto`` of Paddle's meaning among it."""
        super().save_to_prototxt(output)
        if self.auto:
            with Path(output).open("a", encoding="utf-8") as file:
                file.write("auto: true\n")

    @override
    def request(self) -> Request:
        made = super().request()
        for name in [name for name in TUNED if name in made.changed]:
            note(f"strategy.{name}", "it tunes how things are computed and changes no result.")
        changed = {name: normal for name, normal in made.changed.items() if name not in TUNED}
        chosen = dict(made.strategies)
        if "amp" in chosen:
            half = chosen["amp"] = scaling(chosen["amp"])
            if not half.get("use_pure_fp16") and not half.get("use_pure_bf16"):
                half.pop("use_fp16_guard", None)  # it is about those modes
        return replace(made, changed=changed, strategies=chosen)


def scaling(given: Mapping[str, Any]) -> dict[str, Any]:
    """``amp_configs`` with Paddle's defaults where the scale of a loss changes.

    Where it does not, defaults of how it would are left out: they say nothing.
    """
    brain = given.get("use_pure_bf16") or given.get("dtype") == "bfloat16"
    if not brain and given.get("use_dynamic_loss_scaling", True):
        return {"decr_ratio": _CHANGES["decr_ratio"], **given}
    idle: dict[str, tuple[float, ...]] = {name: (usual,) for name, usual in _CHANGES.items()}
    idle |= _OF_BFLOAT16 if brain else {}
    return {
        name: value
        for name, value in given.items()
        if not any(_is_about(value, usual) for usual in idle.get(name, ()))
    }


def _is_about(value: Any, usual: float) -> bool:
    """Whether it is that number; what is none is refused later, by its name."""
    return isinstance(value, int | float) and math.isclose(value, usual, rel_tol=1e-6)


def _options(block: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options with variables by their names, and without those that say nothing."""
    renamed, idle = _OTHER_KEYS.get(block, {}), _IDLE_KEYS.get(block, ())
    for name in [name for name in idle if name in given]:
        note(f"{block}[{name!r}]", "it tunes how things take turns and changes no result.")
    made = {
        renamed.get(key, key): value
        for key, value in given.items()
        if value is not None and key not in idle
    }
    if "checkpoints" in made:
        made["checkpoints"] = names_of(made["checkpoints"])
    return made


def names_of(entries: Any) -> list[str]:
    """Variables, or their names, by name; lists of several segments in one."""
    found: list[str] = []
    for entry in entries:
        if isinstance(entry, list | tuple):
            found += names_of(entry)
        else:
            found.append(str(getattr(entry, "name", entry)))
    return found


class CollectiveStrategy(BuildStrategy):
    """``DistributedStrategy`` of ``fluid.incubate.fleet.collective``."""

    def __init__(self) -> None:
        super().__init__()
        vars(self)["_own"] = {
            "use_local_sgd": False,
            "use_dist_fc": False,
            "dist_fc_config": None,
            "mode": "nccl2",
            "collective_mode": None,
            "nccl_comm_num": 1,
            "forward_recompute": False,
            "recompute_checkpoints": [],
            "use_amp": False,
            "amp_loss_scaling": 2**15,
            "sync_batch_norm": False,
            "exec_strategy": ExecutionStrategy(),
        }

    @override
    def __getattr__(self, name: str) -> Any:
        own = vars(self).get("_own", {})
        return own[name] if name in own else super().__getattr__(name)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        own = vars(self).get("_own", {})
        if name == "nccl_comm_num" and value != 1:
            note(f"strategy.{name}", "torch chooses how many rings exchange gradients.")
        if name in own:
            own[name] = value
        else:
            super().__setattr__(name, value)

    @property
    def local(self) -> bool:
        """Whether workers move their own parameters, and exchange those."""
        return bool(self.use_local_sgd or self.collective_mode == "local_sgd")

    def native(self) -> DistributedStrategy:
        """The same as a strategy of today."""
        self._check()
        made = DistributedStrategy()
        made.execution_strategy = self.exec_strategy
        made.build_strategy = self.explicit()
        made.fuse_all_reduce_ops = bool(self.fuse_all_reduce_ops)
        made.sync_batch_norm = bool(self.sync_batch_norm)
        if self.local:
            made.localsgd = True
            made.localsgd_configs = {"k_steps": 1, "begin_step": 1}
        if self.forward_recompute:
            made.recompute = True
            made.recompute_configs = {"checkpoints": self.recompute_checkpoints}
        if self.use_amp:
            made.amp = True
            made.amp_configs = {"init_loss_scaling": float(self.amp_loss_scaling)}
        return made

    def _check(self) -> None:
        if self.use_dist_fc:
            raise ValueError(
                "strategy.use_dist_fc = True spreads the last layer over workers, which is "
                "strategy.tensor_parallel of fleet 2 here; leave it False."
            )
        if self.forward_recompute and not isinstance(self.recompute_checkpoints, list):
            raise ValueError("strategy.recompute_checkpoints is a list of variables or names")
        if self.forward_recompute and not self.recompute_checkpoints:
            raise ValueError(
                "strategy.forward_recompute = True keeps what recompute_checkpoints names, and it "
                "names nothing; list the variables at which the forward pass is cut."
            )
        if self.mode not in {"nccl2", "collective"}:
            raise ValueError(f"strategy.mode is 'nccl2' or 'collective', got {self.mode!r}")


_PUSHES = "geo_sgd_need_push_nums"


class DistributeTranspilerConfig(NativeTranspiler):
    """How parameters are spread over servers, or that workers exchange by themselves."""

    def __init__(self) -> None:
        vars(self)["_kept"] = {
            "mode": "pserver",
            "enable_dc_asgd": False,
            "print_log": False,
            "wait_port": True,
            "nccl_comm_num": 1,
            "use_hierarchical_allreduce": False,
            "hierarchical_allreduce_inter_nranks": 0,
            "completely_not_async": False,
            "collective_mode": None,
        }
        super().__init__()

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "geo_sgd_need_push_num":
            name = "geo_sgd_need_push_nums"  # misspelt in scripts of the examples
        if name == "enable_dc_asgd" and value:
            raise ValueError(
                "DistributeTranspilerConfig.enable_dc_asgd = True corrects late gradients by a "
                "rule that servers do not have here; leave it False."
            )
        kept = vars(self)["_kept"]
        if name in kept:
            kept[name] = value
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        kept = vars(self).get("_kept", {})
        if name not in kept:
            raise AttributeError(f"DistributeTranspilerConfig has no {name!r}")
        return kept[name]

    @override
    def strategy(self, base: NativeStrategy) -> NativeStrategy:
        plain = NativeTranspiler()
        for name, value in vars(self).items():
            if name != "_kept":
                setattr(plain, name, value)
        if plain.sync_mode:  # what is not synchronous had no effect beside it
            for name in ("geo_sgd_mode", "half_async", "runtime_split_send_recv"):
                setattr(plain, name, False)
        if not vars(plain)["geo_sgd_mode"]:
            usual = vars(NativeTranspiler())["geo_sgd_need_push_nums"]
            setattr(plain, _PUSHES, usual)
        return plain.strategy(base)


class TrainerStrategy(DistributeTranspilerConfig):
    """What ``StrategyFactory`` of Paddle 1.8 makes: a way of exchange with servers."""

    def get_program_config(self) -> "TrainerStrategy":
        """Itself: there is one configuration."""
        return self

    get_trainer_runtime_config = get_server_runtime_config = get_program_config
    get_communicator_flags = get_program_config

    def get_execute_strategy(self) -> ExecutionStrategy:
        """How a CompiledProgram of the workers is run."""
        found: ExecutionStrategy = vars(self)["_kept"].setdefault("execute", ExecutionStrategy())
        return found

    def get_build_strategy(self) -> BuildStrategy:
        """How it is rewritten."""
        found: BuildStrategy = vars(self)["_kept"].setdefault("build", BuildStrategy())
        return found


def native(strategy: Any) -> Any:
    """A strategy of any generation as fleetx takes it; None for none."""
    if strategy is None or isinstance(strategy, NativeStrategy | NativeTranspiler):
        return strategy
    if isinstance(strategy, CollectiveStrategy):
        return strategy.native()
    if isinstance(strategy, Mapping):
        return _of_pslib(strategy)
    if isinstance(strategy, BuildStrategy):
        made = DistributedStrategy()
        made.build_strategy = strategy.explicit()
        return made
    raise TypeError(
        "a strategy is a DistributedStrategy, a DistributeTranspilerConfig or what StrategyFactory "
        f"makes, got {strategy!r}"
    )


def _of_pslib(strategy: Mapping[str, Any]) -> DistributedStrategy:
    """Servers of pslib are asynchronous; its tables are described elsewhere."""
    for name in strategy:
        note(f"strategy[{name!r}]", "it tunes the servers of pslib; rows move by the optimizer.")
    made = DistributedStrategy()
    made.a_sync = True
    return made


def with_strategies(strategy: Any, asked: Mapping[str, Mapping[str, Any]]) -> NativeStrategy:
    """The strategy with more switches on, those that optimizers brought along."""
    made = copy.deepcopy(strategy) if strategy is not None else DistributedStrategy()
    for name, options in asked.items():
        setattr(made, name, True)
        if options:
            setattr(made, f"{name}_configs", options)
    return made


def chosen_by_auto(optimizer: str) -> dict[str, dict[str, Any]]:
    """What ``strategy.auto`` switched on for an optimizer, by its name, when it came up."""
    several = roles.started() and roles.worker_num() > 1
    if optimizer.startswith(("Momentum", "LarsMomentum")):
        return {"amp": {}, "lars": {"lars_coeff": 0.01}}
    if optimizer.startswith("Adam"):
        return {"amp": {}, "lamb": {}}
    return {"amp": {}, "adaptive_localsgd": {}} if several else {"amp": {}}

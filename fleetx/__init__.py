"""Distributed training for PyTorch with one declarative object: ``import fleetx as fleet``."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetx.api.distribute import distributed_model, distributed_optimizer, init
    from fleetx.api.distributed_model import DistributedModel
    from fleetx.api.grad_clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
    from fleetx.api.layout import (
        data_index,
        data_num,
        full_state_dict,
        load_full_state_dict,
    )
    from fleetx.api.notebooks import launch
    from fleetx.api.optimizer import DistributedOptimizer
    from fleetx.api.planning import plan
    from fleetx.api.seeds import seed
    from fleetx.api.servers import (
        init_server,
        init_worker,
        run_server,
        server_report,
        settle_workers,
        shrink,
        stop_worker,
    )
    from fleetx.applications.train_configs import parse_train_configs
    from fleetx.checking.eager import check
    from fleetx.config.block import BuildStrategy, ExecutionStrategy
    from fleetx.config.distributed_strategy import DistributedStrategy
    from fleetx.config.transpiler import DistributeTranspilerConfig
    from fleetx.data import DistributedLoader, distributed_loader
    from fleetx.data.multi_slot_generator import (
        MultiSlotDataGenerator,
        MultiSlotStringDataGenerator,
    )
    from fleetx.data.slot_dataset import InMemoryDataset, QueueDataset, train_from_dataset
    from fleetx.data.slots import Slot
    from fleetx.io import load_inference_model, load_vars
    from fleetx.io.checkpoint_manager import CheckpointManager
    from fleetx.io.jobs import load_persistables, save_inference_model, save_persistables
    from fleetx.io.weights import load_weights, save_weights
    from fleetx.metrics.gathering import gather_for_metrics
    from fleetx.plan.error import PlanError
    from fleetx.profiling.eager import profile
    from fleetx.roles import (
        MPISymetricRoleMaker,
        NotInitializedError,
        PaddleCloudRoleMaker,
        Role,
        RoleMakerBase,
        UserDefinedCollectiveRoleMaker,
        UserDefinedRoleMaker,
        all_reduce,
        barrier_worker,
        device,
        first_worker_first,
        is_coordinator,
        is_first_worker,
        is_server,
        is_worker,
        local_device_ids,
        local_rank,
        mesh,
        node_num,
        nranks,
        rank,
        server_endpoints,
        server_index,
        server_num,
        split_files,
        util,
        worker_endpoints,
        worker_index,
        worker_num,
        world_device_ids,
        world_size,
    )
    from fleetx.static.record.program import Program
    from fleetx.static.run.distributed import minimize
    from fleetx.tracking.log import log

    main_program: Program
    startup_program: Program
    _origin_program: Program

__version__ = "0.1.0"

__all__ = [
    "BuildStrategy",
    "CheckpointManager",
    "ClipGradByGlobalNorm",
    "ClipGradByNorm",
    "ClipGradByValue",
    "DistributeTranspilerConfig",
    "DistributedLoader",
    "DistributedModel",
    "DistributedOptimizer",
    "DistributedStrategy",
    "ExecutionStrategy",
    "InMemoryDataset",
    "MPISymetricRoleMaker",
    "MultiSlotDataGenerator",
    "MultiSlotStringDataGenerator",
    "NotInitializedError",
    "PaddleCloudRoleMaker",
    "PlanError",
    "QueueDataset",
    "Role",
    "RoleMakerBase",
    "Slot",
    "UserDefinedCollectiveRoleMaker",
    "UserDefinedRoleMaker",
    "all_reduce",
    "applications",
    "barrier_worker",
    "check",
    "data_index",
    "data_num",
    "device",
    "distributed_loader",
    "distributed_model",
    "distributed_optimizer",
    "first_worker_first",
    "full_state_dict",
    "gather_for_metrics",
    "init",
    "init_server",
    "init_worker",
    "is_coordinator",
    "is_first_worker",
    "is_server",
    "is_worker",
    "launch",
    "load_full_state_dict",
    "load_inference_model",
    "load_persistables",
    "load_vars",
    "load_weights",
    "local_device_ids",
    "local_rank",
    "log",
    "mesh",
    "metrics",
    "minimize",
    "node_num",
    "nranks",
    "parse_train_configs",
    "plan",
    "profile",
    "rank",
    "run_server",
    "save_inference_model",
    "save_persistables",
    "save_weights",
    "seed",
    "server_endpoints",
    "server_index",
    "server_num",
    "server_report",
    "settle_workers",
    "shrink",
    "split_files",
    "static",
    "stop_worker",
    "train_from_dataset",
    "util",
    "utils",
    "worker_endpoints",
    "worker_index",
    "worker_num",
    "world_device_ids",
    "world_size",
]

# Packages load on first use, so that importing fleetx costs next to nothing over importing torch.
_HOMES = {
    "parse_train_configs": "fleetx.applications.train_configs",
    "check": "fleetx.checking.eager",
    "BuildStrategy": "fleetx.config.block",
    "ExecutionStrategy": "fleetx.config.block",
    "DistributedStrategy": "fleetx.config.distributed_strategy",
    "DistributedLoader": "fleetx.data",
    "distributed_loader": "fleetx.data",
    "MultiSlotDataGenerator": "fleetx.data.multi_slot_generator",
    "MultiSlotStringDataGenerator": "fleetx.data.multi_slot_generator",
    "InMemoryDataset": "fleetx.data.slot_dataset",
    "QueueDataset": "fleetx.data.slot_dataset",
    "train_from_dataset": "fleetx.data.slot_dataset",
    "Slot": "fleetx.data.slots",
    "ClipGradByGlobalNorm": "fleetx.api.grad_clip",
    "ClipGradByNorm": "fleetx.api.grad_clip",
    "ClipGradByValue": "fleetx.api.grad_clip",
    "DistributedModel": "fleetx.api.distributed_model",
    "DistributedOptimizer": "fleetx.api.optimizer",
    "data_index": "fleetx.api.layout",
    "data_num": "fleetx.api.layout",
    "init_server": "fleetx.api.servers",
    "init_worker": "fleetx.api.servers",
    "run_server": "fleetx.api.servers",
    "server_report": "fleetx.api.servers",
    "settle_workers": "fleetx.api.servers",
    "shrink": "fleetx.api.servers",
    "stop_worker": "fleetx.api.servers",
    "DistributeTranspilerConfig": "fleetx.config.transpiler",
    "distributed_model": "fleetx.api.distribute",
    "distributed_optimizer": "fleetx.api.distribute",
    "full_state_dict": "fleetx.api.layout",
    "gather_for_metrics": "fleetx.metrics.gathering",
    "init": "fleetx.api.distribute",
    "log": "fleetx.tracking.log",
    "seed": "fleetx.api.seeds",
    "load_full_state_dict": "fleetx.api.layout",
    "minimize": "fleetx.static.run.distributed",
    "load_inference_model": "fleetx.io",
    "CheckpointManager": "fleetx.io.checkpoint_manager",
    "load_persistables": "fleetx.io.jobs",
    "load_vars": "fleetx.io",
    "save_inference_model": "fleetx.io.jobs",
    "save_persistables": "fleetx.io.jobs",
    "load_weights": "fleetx.io.weights",
    "save_weights": "fleetx.io.weights",
    "PlanError": "fleetx.plan.error",
    "profile": "fleetx.profiling.eager",
}


# They change with every minimize(), so they are asked for each time.
_PROGRAMS = {
    "main_program": "main_program",
    "startup_program": "startup_program",
    "_origin_program": "origin_program",
}


_ROOMS = {"applications", "launch", "metrics", "plan", "static", "utils"}
"""What is public as a whole."""


def __getattr__(name: str) -> Any:
    if name in _PROGRAMS:
        programs = importlib.import_module("fleetx.static.run.distributed")
        return getattr(programs, _PROGRAMS[name])()
    if name in _ROOMS:
        return importlib.import_module(f"fleetx.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'fleetx' has no attribute {name!r}{_meant(name)}")
    module = importlib.import_module(_HOMES.get(name, "fleetx.roles"))
    value = globals()[name] = getattr(module, name)
    return value


def _meant(name: str) -> str:
    """What the complaint about a misspelt name adds; importers ask for names of their own."""
    if name.startswith("_"):
        return ""
    near_names = importlib.import_module("fleetx.near_names")
    near = near_names.nearest_names(name, __all__)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

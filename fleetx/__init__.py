"""Distributed training for PyTorch with one declarative object: ``import fleetx as fleet``."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from fleetx.engine.grad_clip import ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue
    from fleetx.engine.optimizer import DistributedOptimizer
    from fleetx.engine.servers import (
        init_server,
        init_worker,
        load_persistables,
        run_server,
        save_inference_model,
        save_persistables,
        server_report,
        shrink,
        stop_worker,
    )
    from fleetx.engine.session import distributed_model, distributed_optimizer, init
    from fleetx.plan.error import PlanError
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

__version__ = "0.1.0"

__all__ = [
    "BuildStrategy",
    "ClipGradByGlobalNorm",
    "ClipGradByNorm",
    "ClipGradByValue",
    "DistributeTranspilerConfig",
    "DistributedLoader",
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
    "barrier_worker",
    "check",
    "device",
    "distributed_loader",
    "distributed_model",
    "distributed_optimizer",
    "init",
    "init_server",
    "init_worker",
    "is_coordinator",
    "is_first_worker",
    "is_server",
    "is_worker",
    "load_persistables",
    "local_device_ids",
    "local_rank",
    "mesh",
    "node_num",
    "nranks",
    "rank",
    "run_server",
    "save_inference_model",
    "save_persistables",
    "server_endpoints",
    "server_index",
    "server_num",
    "server_report",
    "shrink",
    "split_files",
    "stop_worker",
    "train_from_dataset",
    "util",
    "worker_endpoints",
    "worker_index",
    "worker_num",
    "world_device_ids",
    "world_size",
]

# Rooms load on first use, so that importing fleetx costs next to nothing over importing torch.
_HOMES = {
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
    "ClipGradByGlobalNorm": "fleetx.engine.grad_clip",
    "ClipGradByNorm": "fleetx.engine.grad_clip",
    "ClipGradByValue": "fleetx.engine.grad_clip",
    "DistributedOptimizer": "fleetx.engine.optimizer",
    "init_server": "fleetx.engine.servers",
    "init_worker": "fleetx.engine.servers",
    "load_persistables": "fleetx.engine.servers",
    "run_server": "fleetx.engine.servers",
    "save_inference_model": "fleetx.engine.servers",
    "save_persistables": "fleetx.engine.servers",
    "server_report": "fleetx.engine.servers",
    "shrink": "fleetx.engine.servers",
    "stop_worker": "fleetx.engine.servers",
    "DistributeTranspilerConfig": "fleetx.config.transpiler",
    "distributed_model": "fleetx.engine.session",
    "distributed_optimizer": "fleetx.engine.session",
    "init": "fleetx.engine.session",
    "PlanError": "fleetx.plan.error",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fleetx' has no attribute {name!r}")
    room = importlib.import_module(_HOMES.get(name, "fleetx.roles"))
    value = globals()[name] = getattr(room, name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""``paddle.distributed.fleet``: the fleet object's calls, as functions of a module."""

import importlib
from typing import Any

from fleetx.compat.tables import table

_CALLS = [
    "init",
    "is_first_worker",
    "worker_index",
    "worker_num",
    "node_num",
    "local_rank",
    "rank",
    "nranks",
    "world_size",
    "local_device_ids",
    "world_device_ids",
    "is_worker",
    "worker_endpoints",
    "server_num",
    "server_index",
    "server_endpoints",
    "is_server",
    "is_coordinator",
    "barrier_worker",
    "split_files",
    "util",
    "init_worker",
    "stop_worker",
    "init_server",
    "run_server",
    "shrink",
    "save_persistables",
    "save_inference_model",
    "load_persistables",
    "load_model",
    "distributed_optimizer",
    "distributed_model",
    "distributed_scaler",
    "minimize",
    "step",
    "clear_grad",
    "get_lr",
    "set_lr",
    "state_dict",
    "set_state_dict",
    "amp_init",
    "get_hybrid_communicate_group",
    "_final_strategy",
    "_get_applied_meta_list",
    "_get_applied_graph_list",
]
_CHANGING = [
    "main_program",
    "startup_program",
    "_origin_program",
    "_transpiled_program",
    "_role_maker",
    "_user_defined_strategy",
    "_hcg",
]
"""What every ``minimize`` or ``init`` makes anew."""

_look_up, _listed = table(
    __name__,
    {
        "eager_fleet": "fleet Fleet=Fleet2",
        "fleet_strategies": "DistributedStrategy",
        "role_makers": "PaddleCloudRoleMaker UserDefinedRoleMaker Role",
        "hybrid": "CommunicateTopology=Topology HybridCommunicateGroup",
        "paddle.distributed.fleet.data_generator": (
            "MultiSlotDataGenerator MultiSlotStringDataGenerator"
        ),
        "paddle.distributed.datasets": "InMemoryDataset QueueDataset",
        "paddle.distributed.fleet.base.util_factory": "UtilBase",
    },
    modules=(
        [
            "base",
            "data_generator",
            "dataset",
            "meta_optimizers",
            "meta_parallel",
            "metrics",
            "utils",
        ]
    ),
)


def __getattr__(name: str) -> Any:
    if name in _CALLS or name in _CHANGING:
        found = importlib.import_module("fleetx.compat.eager_fleet").fleet
        return getattr(found, name)
    return _look_up(name)


def __dir__() -> list[str]:
    return sorted([*_listed(), *_CALLS, *_CHANGING])

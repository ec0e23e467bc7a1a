"""How a process learns who it is: role makers, queries, process groups and the device mesh."""

import importlib
from typing import TYPE_CHECKING, Any

from fleetx.roles.detection import PaddleCloudRoleMaker, detect
from fleetx.roles.mpi import MPISymetricRoleMaker
from fleetx.roles.role import Identity, Role, RoleMaker
from fleetx.roles.user_defined import UserDefinedCollectiveRoleMaker, UserDefinedRoleMaker

if TYPE_CHECKING:
    from fleetx.roles.device_mesh import alone, mesh
    from fleetx.roles.first_worker import first_worker_first
    from fleetx.roles.queries import (
        all_reduce,
        barrier_worker,
        is_coordinator,
        is_first_worker,
        is_server,
        is_worker,
        local_device_ids,
        local_rank,
        node_num,
        nranks,
        rank,
        server_endpoints,
        server_index,
        server_num,
        split_files,
        worker_endpoints,
        worker_index,
        worker_num,
        world_device_ids,
        world_size,
    )
    from fleetx.roles.session import (
        NotInitializedError,
        at_stop,
        device,
        identity,
        refuse_without_servers,
        start,
        started,
        stop,
    )
    from fleetx.roles.worker_util import WorkerUtil, util

RoleMakerBase = RoleMaker
"""The name of `RoleMaker` in older scripts."""

__all__ = [
    "Identity",
    "MPISymetricRoleMaker",
    "NotInitializedError",
    "PaddleCloudRoleMaker",
    "Role",
    "RoleMaker",
    "RoleMakerBase",
    "UserDefinedCollectiveRoleMaker",
    "UserDefinedRoleMaker",
    "WorkerUtil",
    "all_reduce",
    "alone",
    "at_stop",
    "barrier_worker",
    "detect",
    "device",
    "first_worker_first",
    "identity",
    "is_coordinator",
    "is_first_worker",
    "is_server",
    "is_worker",
    "local_device_ids",
    "local_rank",
    "mesh",
    "node_num",
    "nranks",
    "rank",
    "refuse_without_servers",
    "server_endpoints",
    "server_index",
    "server_num",
    "split_files",
    "start",
    "started",
    "stop",
    "util",
    "worker_endpoints",
    "worker_index",
    "worker_num",
    "world_device_ids",
    "world_size",
]

_MODULES = ("session", "queries", "worker_util", "device_mesh", "first_worker")
"""These need torch, which a launcher or a test of the pure part does without."""


def __getattr__(name: str) -> Any:
    """Load torch with the first name that needs it."""
    if name in __all__:
        for part in _MODULES:
            module = importlib.import_module(f"fleetx.roles.{part}")
            if name in vars(module):
                globals()[name] = vars(module)[name]
                return globals()[name]
    raise AttributeError(f"module 'fleetx.roles' has no attribute {name!r}")

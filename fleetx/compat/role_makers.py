"""Role makers, with the questions that scripts of Paddle 1 ask them directly."""

from typing import Any

import numpy as np

from fleetx import roles
from fleetx.api import servers
from fleetx.compat.notes import note
from fleetx.roles import Role


class _Answers(roles.RoleMaker):
    """Who this process is, before and after ``fleet.init``."""

    def generate_role(self) -> None:
        """Nothing to do: questions are answered when they are asked."""

    def is_worker(self) -> bool:
        """Whether this process trains."""
        return self.identity().is_worker

    def is_server(self) -> bool:
        """Whether this process is a server."""
        return not self.identity().is_worker

    def is_first_worker(self) -> bool:
        """Whether it is the first of the workers."""
        found = self.identity()
        return found.is_worker and found.index == 0

    def worker_index(self) -> int:
        """The number of this worker."""
        return self.identity().index

    server_index = role_id = get_rank = worker_index

    def worker_num(self) -> int:
        """How many workers there are."""
        return self.identity().worker_num

    get_size = worker_num

    def server_num(self) -> int:
        """How many servers there are."""
        return len(self.identity().server_endpoints)

    def get_trainer_endpoints(self) -> list[str]:
        """Addresses of the workers."""
        return list(self.identity().worker_endpoints)

    def get_pserver_endpoints(self) -> list[str]:
        """Addresses of the servers."""
        return list(self.identity().server_endpoints)

    def get_current_endpoint(self) -> str:
        """The address of this process."""
        found = self.identity()
        known = found.worker_endpoints if found.is_worker else found.server_endpoints
        return known[found.index] if known else ""

    # Paddle 2 asks the same by other names.
    _is_worker, _is_server, _is_first_worker = is_worker, is_server, is_first_worker
    _worker_index, _worker_num, _server_num = worker_index, worker_num, server_num
    _server_index, _role_id = worker_index, worker_index
    _get_trainer_endpoints, _get_pserver_endpoints = get_trainer_endpoints, get_pserver_endpoints

    @property
    def _is_collective(self) -> bool:
        return self.identity().is_collective

    def barrier_worker(self) -> None:
        """Wait until every worker is here."""
        roles.barrier_worker()

    barrier_all = _barrier = _barrier_worker = _barrier_all = barrier_worker

    def all_reduce_worker(self, input: Any, output: Any = None, mode: str = "sum") -> Any:
        """Numbers of all workers as one, also written into an array that is given."""
        found = np.asarray(roles.util.all_reduce(np.asarray(input), mode))
        if output is not None:
            np.copyto(output, found.reshape(np.shape(output)))
        return found

    all_reduce = _all_reduce = all_reduce_worker

    def all_gather(self, input: Any) -> list[Any]:
        """What each worker has, in their order."""
        return list(roles.util.all_gather(input))

    _all_gather = all_gather


class PaddleCloudRoleMaker(_Answers, roles.PaddleCloudRoleMaker):
    """Takes the role from the environment, whichever launcher filled it."""

    def __init__(self, is_collective: bool = False, init_gloo: bool = False, **old: Any) -> None:
        for name in old:
            note(f"PaddleCloudRoleMaker({name}=...)", "workers meet without it here.")
        super().__init__(bool(is_collective), init_gloo=bool(init_gloo))


class GeneralRoleMaker(PaddleCloudRoleMaker):
    """The same of Paddle 1.8, whose workers met by files or over http."""

    def __init__(self, **old: Any) -> None:
        super().__init__(False, **old)


_MEETING = ("path", "init_timeout_seconds", "run_timeout_seconds", "http_ip_port", "http_host_ip")
"""Where and how long workers of Paddle wait for each other."""


def _met(old: dict[str, Any]) -> dict[str, Any]:
    for name in [name for name in _MEETING if name in old]:
        old.pop(name)
        note(f"UserDefinedRoleMaker({name}=...)", "workers meet without it here.")
    return old


class UserDefinedRoleMaker(_Answers, roles.UserDefinedRoleMaker):
    """Every process is told its place by the script."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **_met(given))
        _told[:] = [self]


_told: list[UserDefinedRoleMaker] = []
"""Empty or one: what a script said of this process last."""


def forget() -> None:
    """Begin as a new process does."""
    _told.clear()


def servers_ahead() -> bool:
    """Whether this is a job with servers, also before ``fleet.init``: networks may come first."""
    if roles.started():
        return servers.has_servers()
    known = (_told[0] if _told else roles.detect(is_collective=False)).identity()
    return bool(known.server_endpoints) and not known.is_collective


class UserDefinedCollectiveRoleMaker(_Answers, roles.UserDefinedCollectiveRoleMaker):
    """Workers that are told their place by the script."""


class MPISymetricRoleMaker(_Answers, roles.MPISymetricRoleMaker):
    """Every second process of ``mpirun`` is a server."""


RoleMakerBase = roles.RoleMakerBase

__all__ = [
    "GeneralRoleMaker",
    "MPISymetricRoleMaker",
    "PaddleCloudRoleMaker",
    "Role",
    "RoleMakerBase",
    "UserDefinedCollectiveRoleMaker",
    "UserDefinedRoleMaker",
]

"""What a script may ask about its place in the job."""

from collections.abc import Sequence
from typing import Any, Literal, overload

from fleetx.roles.role import Role
from fleetx.roles.session import identity
from fleetx.roles.worker_util import Array, util


def worker_num() -> int:
    """How many workers the job has."""
    return identity("worker_num").worker_num


def worker_index() -> int:
    """This worker's number, from 0."""
    return _index("worker_index", Role.WORKER)


@overload
def worker_endpoints(to_string: Literal[False] = False) -> list[str]: ...
@overload
def worker_endpoints(to_string: Literal[True]) -> str: ...
def worker_endpoints(to_string: bool = False) -> list[str] | str:
    """host:port of every worker, as a list or joined by commas."""
    found = identity("worker_endpoints")
    if not found.worker_endpoints:
        raise RuntimeError(
            f"the endpoints of the workers are not known to {found.source}; "
            "pass worker_endpoints=[...] to the role maker, or set PADDLE_TRAINER_ENDPOINTS"
        )
    return _listed(found.worker_endpoints, to_string)


def server_num() -> int:
    """How many parameter servers the job has; 0 in a collective job."""
    return len(identity("server_num").server_endpoints)


def server_index() -> int:
    """This server's number, from 0."""
    return _index("server_index", Role.SERVER)


@overload
def server_endpoints(to_string: Literal[False] = False) -> list[str]: ...
@overload
def server_endpoints(to_string: Literal[True]) -> str: ...
def server_endpoints(to_string: bool = False) -> list[str] | str:
    """host:port of every server, as a list or joined by commas; empty in a collective job."""
    return _listed(identity("server_endpoints").server_endpoints, to_string)


def is_worker() -> bool:
    """Whether this process trains."""
    return identity("is_worker").is_worker


def is_server() -> bool:
    """Whether this process is a parameter server."""
    return not identity("is_server").is_worker


def is_coordinator() -> bool:
    """Always False: fleetx has no coordinators."""
    identity("is_coordinator")
    return False


def is_first_worker() -> bool:
    """Whether this process is worker 0."""
    found = identity("is_first_worker")
    return found.is_worker and found.index == 0


def barrier_worker() -> None:
    """Wait until every worker is here."""
    util.barrier(query="barrier_worker")


def all_reduce(input: Any, mode: str = "sum") -> Array:
    """The same as `util.all_reduce`."""
    return util.all_reduce(input, mode)


def split_files(files: list[str]) -> list[str]:
    """The same as `util.get_file_shard`, under its older name."""
    return util.get_file_shard(files)


def node_num() -> int:
    """How many machines the workers run on."""
    found = identity("node_num")
    if not found.node_num:
        raise RuntimeError(
            f"the number of machines is not known to {found.source}; "
            "pass worker_endpoints=[...] to the role maker"
        )
    return found.node_num


def local_rank() -> int:
    """This process's number among those of its machine."""
    return identity("local_rank").local_rank


def local_device_ids() -> list[int]:
    """The CUDA devices of this process; empty on the CPU."""
    return list(identity("local_device_ids").local_device_ids)


def world_device_ids() -> list[list[int]]:
    """The CUDA devices of every worker, in the order of the workers."""
    return [list(ids) for ids in identity("world_device_ids").world_device_ids]


def rank() -> int:
    """The same as `worker_index`."""
    return _index("rank", Role.WORKER)


def nranks() -> int:
    """The same as `worker_num`."""
    return identity("nranks").worker_num


def world_size() -> int:
    """The same as `worker_num`."""
    return identity("world_size").worker_num


def _index(query: str, role: Role) -> int:
    found = identity(query)
    if found.role is not role:
        wanted = role.name.lower()
        raise RuntimeError(
            f"fleet.{query}() was asked by {found.noun} {found.index}, which is no {wanted} and "
            f"has no such number; ask fleet.is_{wanted}() first"
        )
    return found.index


def _listed(endpoints: Sequence[str], to_string: bool) -> list[str] | str:
    return ",".join(endpoints) if to_string else list(endpoints)

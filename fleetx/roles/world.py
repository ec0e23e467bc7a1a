"""The process group of the workers: made, or taken over from the script."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from fleetx.roles.addresses import (
    host_address,
    hosts_of,
    join_endpoint,
    machine_name,
    open_port,
    port_of,
)
from fleetx.roles.barrier import Barrier
from fleetx.roles.devices import card_name, choose_backend, choose_device
from fleetx.roles.messages import gather_bytes
from fleetx.roles.role import Identity
from fleetx.roles.stores import (
    Store,
    gather_through_store,
    host_store,
    make_group,
    open_store,
    patience,
    visit_store,
)

Tell = Callable[[str, Any], list[Any]]
"""Takes a topic and a fact, returns the facts of all workers."""

_ALONE = "127.0.0.1:6170"


@dataclass(frozen=True, kw_only=True)
class World:
    """What `start` made out of an identity."""

    identity: Identity
    """The identity with everything filled in that only the peers know."""
    device: torch.device
    """Where this process computes."""
    group: dist.ProcessGroup | None = None
    """A gloo group of the workers; None where there is none to be had."""
    barrier: Barrier | None = None
    """Where the workers wait for each other; goes with the group."""
    backend: str = "none"
    """The backend of torch's default group."""
    owned: bool = False
    """Whether torch's default group is ours to destroy."""
    meshes: dict[tuple[tuple[str, int], ...], Any] = field(default_factory=dict)
    """Device meshes by their axes; they go with the job, and their groups' threads with them."""
    spare: dict[str, dist.ProcessGroup] = field(default_factory=dict)
    """More gloo groups of all workers by what for: what is said in one is not heard in another."""


def open_world(found: Identity) -> World:
    """Make the group of the workers, or use the one the script has made."""
    if not found.is_worker:
        return World(identity=_count_nodes(found), device=torch.device("cpu"))
    if dist.is_initialized():
        return _adopt(found)
    if found.worker_num > 1 and not found.rendezvous:
        return _unconnected(found)
    return _make(found)


def close_world(world: World) -> None:
    """Destroy what `open_world` made, and nothing else."""
    if world.barrier is not None:
        world.barrier.close()
    if not dist.is_initialized():
        return
    if world.owned:
        dist.destroy_process_group()
        return
    for group in (world.group, *world.spare.values()):
        if group is not None and group is not dist.group.WORLD:
            dist.destroy_process_group(group)


def _make(found: Identity) -> World:
    store = open_store(found, patience())

    def tell(topic: str, fact: Any) -> list[Any]:
        return gather_through_store(store, f"fleetx/{topic}", found, fact)

    full = _complete(found, _machines(found, tell))
    device = _take(full)
    cards = tell("cards", [card_name(device), list(_device_ids(full, device))])
    backend = choose_backend([name for name, _ in cards])
    make_group(store, found, backend)
    full = replace(full, world_device_ids=tuple(tuple(ids) for _, ids in cards))
    full = _with_device(full, device)
    return World(
        identity=full,
        device=device,
        group=_gloo(),
        barrier=Barrier(store, found.index, found.worker_num),
        backend=backend,
        owned=True,
    )


def _machines(found: Identity, tell: Tell) -> list[tuple[str, str, int]]:
    """The machine, the address and a free port of every worker."""
    with open_port() as holder:
        told = tell("machines", [machine_name(), host_address(), port_of(holder)])
    return [(machine, address, port) for machine, address, port in told]


def _complete(found: Identity, told: list[tuple[str, str, int]]) -> Identity:
    """Fill in what the launcher did not say from what the workers told each other."""
    machines = [machine for machine, _, _ in told] or hosts_of(found.worker_endpoints)
    full = found
    if not full.local_size and machines:
        own = machines[found.index]
        local_rank = machines[: found.index].count(own)
        full = replace(full, local_rank=local_rank, local_size=machines.count(own))
    if not full.node_num:
        full = replace(full, node_num=len(set(machines)))
    if not full.worker_endpoints and told:
        full = replace(full, worker_endpoints=_endpoints(told))
    return full


def _count_nodes(found: Identity) -> Identity:
    """A server is told about the workers only by their endpoints."""
    return replace(found, node_num=found.node_num or len(set(hosts_of(found.worker_endpoints))))


def _unconnected(found: Identity) -> World:
    """A worker of a parameter-server job that cannot reach the other workers."""
    full = _complete(found, [])
    device = _take(full)
    return World(identity=_with_device(full, device), device=device)


def _endpoints(told: list[tuple[str, str, int]]) -> tuple[str, ...]:
    if len(told) == 1:
        return (_ALONE,)
    one_machine = len({machine for machine, _, _ in told}) == 1
    return tuple(
        join_endpoint("127.0.0.1" if one_machine else address, port) for _, address, port in told
    )


def _take(found: Identity) -> torch.device:
    """Choose the device and make it torch's current one."""
    device = choose_device(found)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _device_ids(found: Identity, device: torch.device) -> tuple[int, ...]:
    if device.type != "cuda":
        return ()
    return found.local_device_ids or (device.index,)


def _with_device(found: Identity, device: torch.device) -> Identity:
    return replace(
        found,
        device_index=device.index if device.type == "cuda" else None,
        local_device_ids=_device_ids(found, device),
    )


def _gloo() -> dist.ProcessGroup | None:
    """A gloo group of all workers: it can name who is missing, and needs no card."""
    backend = dist.get_backend()
    if backend == "fake":
        return None
    return dist.group.WORLD if backend == "gloo" else dist.new_group(backend="gloo")


def _adopt(found: Identity) -> World:
    """Use the default group that the script made before fleet.init()."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if (rank, size) != (found.index, found.worker_num):
        if found.server_endpoints:
            # The script's group mixes workers and servers; it cannot stand for the workers.
            return _unconnected(found)
        raise ValueError(
            f"torch.distributed already has a group in which this process is rank {rank} of "
            f"{size}, but {found.source} says worker {found.index} of {found.worker_num}; call "
            "fleet.init(is_collective=True) without a role maker to use that group, or let "
            "fleet.init() make it"
        )
    group = _gloo()

    def tell(topic: str, fact: Any) -> list[Any]:
        assert group is not None
        return [json.loads(said) for said in gather_bytes(json.dumps(fact).encode(), group)]

    if group is None:
        return _unconnected(found)
    full = _complete(found, _machines(found, tell))
    device = _take(full)
    ids = tell("devices", list(_device_ids(full, device)))
    full = replace(full, world_device_ids=tuple(tuple(own) for own in ids))
    return World(
        identity=_with_device(full, device),
        device=device,
        group=group,
        barrier=Barrier(_second_store(full, tell), rank, size),
        backend=dist.get_backend(),
    )


def _second_store(found: Identity, tell: Tell) -> Store:
    """A store of our own, for torch does not hand out the one of a group."""
    if found.index:
        store = visit_store(tell("store", "")[0], patience())
    else:
        host = "127.0.0.1" if found.node_num == 1 else host_address()
        store, endpoint = host_store(host, patience())
        tell("store", endpoint)
    # The store ends with worker 0's hold on it, and whoever comes later would knock for ever.
    tell("connected", True)
    return store


def group_identity(local_rank: int, local_size: int) -> Identity:
    """The identity in the group that the script made itself."""
    return Identity(
        source="the script's own process group",
        is_collective=True,
        index=dist.get_rank(),
        worker_num=dist.get_world_size(),
        local_rank=local_rank,
        local_size=local_size,
    )

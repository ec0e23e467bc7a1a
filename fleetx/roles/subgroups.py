"""Process groups inside an axis of the mesh: copies of it, and its two levels."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from fleetx.roles.session import world
from fleetx.torch_internals import flattened


def spare_group(purpose: str) -> dist.ProcessGroup | None:
    """A gloo group of all workers for a thread of its own; None where they have no group.

    All workers make the first call for a purpose together.
    """
    here = world(purpose)
    if here.group is None or dist.get_world_size(here.group) == 1:
        return None
    if purpose not in here.spare:
        members = dist.get_process_group_ranks(here.group)
        here.spare[purpose] = dist.new_group(members, backend="gloo")
    return here.spare[purpose]


def copies(mesh: DeviceMesh, axis: str, count: int) -> list[dist.ProcessGroup]:
    """The axis's own group and ``count - 1`` more over the same ranks, with own channels."""
    own = mesh[axis].get_group()
    return [own, *(_mine(_rows(mesh, axis)) for _ in range(count - 1))]


def two_levels(
    mesh: DeviceMesh, axis: str, inner: int
) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Neighbours in blocks of ``inner`` ranks, and the ranks of equal place in all blocks."""
    rows = _rows(mesh, axis)
    blocks = [row[i : i + inner] for row in rows for i in range(0, len(row), inner)]
    across = [row[i::inner] for row in rows for i in range(inner)]
    return _mine(blocks), _mine(across)


def carries(mesh: DeviceMesh, axis: str, device: torch.device) -> bool:
    """Whether all collectives along an axis work on tensors of the device.

    gloo all-reduces tensors of a card, but crashes the process when it shall send one.
    """
    return device.type == "cpu" or "nccl" in dist.get_backend_config(mesh[axis].get_group())


def along(mesh: DeviceMesh, axis: str, places: tuple[int, ...]) -> dist.ProcessGroup | None:
    """The ranks at some places of this rank's row along an axis; None if it is at another."""
    mine = None
    for row in _rows(mesh, axis):
        members = [row[place] for place in places]
        group = dist.new_group(members)
        if dist.get_rank() in members:
            mine = group
    return mine


def data_group(mesh: DeviceMesh) -> dist.ProcessGroup:
    """The ranks that run the same layers on different samples: the axes dp and sharding."""
    for axis, other in (("dp", "sharding"), ("sharding", "dp")):
        if mesh[other].size() == 1:
            return mesh[axis].get_group()
    return flattened(mesh["dp", "sharding"], "data").get_group()


def _rows(mesh: DeviceMesh, axis: str) -> list[list[int]]:
    """Every group of ranks along the axis, in an order that all ranks know."""
    assert mesh.mesh_dim_names is not None
    place = mesh.mesh_dim_names.index(axis)
    found: list[list[int]] = mesh.mesh.movedim(place, -1).flatten(0, -2).tolist()
    return found


def _mine(groups: list[list[int]]) -> dist.ProcessGroup:
    """Make all groups, which every rank must do, and return the one of this rank."""
    found: tuple[dist.ProcessGroup, Any] = dist.new_subgroups_by_enumeration(groups)
    return found[0]

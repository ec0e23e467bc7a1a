"""The workers arranged along named axes."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from fleetx.expected import MAPPING, takes
from fleetx.roles.session import world

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@takes("fleet.mesh", axes=MAPPING.such_as("a dict of lengths by axis, such as {'dp': 2}"))
def mesh(axes: Mapping[str, int]) -> "DeviceMesh":
    """Arrange all workers in a mesh whose last axis runs through neighbouring ranks.

    The same axes give the same mesh: each of its groups has threads and connections of its own.

    Args:
        axes: the length of each axis by its name, outermost first.
    """
    from torch.distributed.device_mesh import init_device_mesh

    here = world("mesh")
    check_axes(axes, here.identity.worker_num)
    meshes: dict[tuple[tuple[str, int], ...], DeviceMesh] = here.meshes
    if (key := tuple(axes.items())) not in meshes:
        names, lengths = tuple(axes), tuple(axes.values())
        meshes[key] = init_device_mesh(here.device.type, lengths, mesh_dim_names=names)
    return meshes[key]


class _Alone:
    """The mesh of a worker that takes part in no collective: every axis has one rank."""

    def __init__(self, axes: Mapping[str, int]) -> None:
        assert math.prod(axes.values()) == 1, f"{axes} needs other workers"
        self.mesh_dim_names = tuple(axes)

    def __getitem__(self, axis: str) -> "_Alone":
        return self

    def size(self, mesh_dim: int | None = None) -> int:
        """One."""
        return 1


def alone(axes: Mapping[str, int]) -> "DeviceMesh":
    """A mesh of this worker alone, which needs no process group."""
    return cast("DeviceMesh", _Alone(axes))


def check_axes(axes: Mapping[str, int], worker_num: int) -> None:
    """Refuse axes that do not use every worker once."""
    if not axes:
        raise ValueError("mesh({}) has no axis; name at least one, such as {'dp': 2}")
    shape = " x ".join(f"{name}={length}" for name, length in axes.items())
    if any(length < 1 for length in axes.values()):
        raise ValueError(f"mesh axes {shape}: a length must be at least 1")
    if math.prod(axes.values()) != worker_num:
        raise ValueError(
            f"mesh axes {shape} need {math.prod(axes.values())} workers, but the job has "
            f"{worker_num}; make the product of the lengths equal to {worker_num}"
        )

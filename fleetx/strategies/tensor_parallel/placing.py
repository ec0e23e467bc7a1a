"""Tensors that are spread over ranks: where they are, and where they shall be."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from fleetx.torch_internals import tree_map_only


def is_spread(value: Any) -> bool:
    """Whether it is a tensor that is spread over ranks."""
    return isinstance(value, DTensor)


def is_cut(value: Any) -> bool:
    """Whether ranks have different parts of it."""
    # By comparison, which the compiler can follow.
    return is_spread(value) and any(where != Replicate() for where in value.placements)


def as_spread(tensor: Tensor, mesh: DeviceMesh) -> DTensor:
    """A tensor that is equal on all ranks, as a replicated one; shares memory and gradients."""
    if isinstance(tensor, DTensor):
        return tensor
    return DTensor.from_local(tensor, mesh, [Replicate()], run_check=False)


def placed(tensor: Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    """The tensor with another placement, exchanged between ranks where that takes it."""
    spread = as_spread(tensor, mesh)
    if isinstance(placement, Shard) and placement.dim < 0:
        placement = Shard(placement.dim + spread.ndim)
    # A redistribution to where it is already would still reduce the gradient by itself.
    if spread.placements == (placement,):
        return spread
    return spread.redistribute(placements=[placement])


def whole(mesh: DeviceMesh, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What every rank computes alone and completely, from tensors that it needs complete."""
    found = whole_arguments(mesh, func, *args, **kwargs)
    return tree_map_only(Tensor, lambda tensor: as_spread(tensor, mesh), found)


def whole_arguments(mesh: DeviceMesh, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The same, for whoever wants the plain result."""

    def plain(tensor: DTensor) -> Tensor:
        return placed(tensor, mesh, Replicate()).to_local()

    args, kwargs = tree_map_only(DTensor, plain, (args, kwargs))
    return func(*args, **kwargs)

"""L2 norms of many tensors, also of tensors that are spread over ranks."""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from fleetx.torch_internals import foreach_norm


def norm(tensor: Tensor) -> float:
    """The norm of one dense tensor in the memory of the CPU."""
    return math.sqrt(float(square(tensor)))


def square(tensor: Tensor) -> Tensor:
    """The squared norm of one dense tensor in the memory of the CPU.

    A scalar product: torch's norm of a whole tensor adds float32 one after the other, which costs
    four digits on a tensor of two million numbers.
    """
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return torch.dot(flat, flat)


def norms(tensors: Sequence[Tensor], params: Sequence[Tensor]) -> Tensor:
    """One norm per tensor, as a vector on their device; nothing waits for the device.

    Args:
        tensors: What lies on this rank, in single or double precision.
        params: The parameters they belong to. Where one is spread over ranks, so is the tensor, and
            its norm is that of all parts together.
    """
    if tensors[0].is_cpu:
        squares = torch.stack([square(t.contiguous()) for t in tensors])
    else:
        squares = torch.stack(list(foreach_norm(list(tensors)))).square_()
    for (mesh, axis), positions in _spread(params).items():
        # By views: for an index of several places, which it brings to the device, the host waits.
        each = list(squares.unbind())
        part = torch.stack([each[position] for position in positions])
        dist.all_reduce(part, group=mesh.get_group(axis))
        for position, square_of_all in zip(positions, part.unbind(), strict=True):
            each[position] = square_of_all
        squares = torch.stack(each)
    return squares.sqrt_()


def _spread(params: Sequence[Tensor]) -> dict[tuple[DeviceMesh, int], list[int]]:
    """(mesh, axis) -> positions of the parameters that are cut along that axis."""
    found: dict[tuple[DeviceMesh, int], list[int]] = {}
    for position, param in enumerate(params):
        if isinstance(param, DTensor):
            for axis, placement in enumerate(param.placements):
                if not placement.is_replicate():
                    found.setdefault((param.device_mesh, axis), []).append(position)
    return found

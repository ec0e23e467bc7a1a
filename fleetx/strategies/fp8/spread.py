"""The product in float8 of a layer whose weight is spread over ranks: each rank has its part.

Every rank scales what it has by itself, which loses no digits: its part may be the smaller one.
"""

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from fleetx.strategies.fp8 import products
from fleetx.strategies.fp8.casting import MULTIPLE


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, by_row: bool) -> Tensor:
    """As ``products.linear``, of plain tensors or of distributed ones.

    Raises:
        ValueError: a rank's part of the weight is no matrix that float8 kernels take.
    """
    if not isinstance(weight, DTensor):
        return products.linear(x, weight, bias, by_row=by_row)
    mesh, (cut,) = weight.device_mesh, weight.placements
    last = x.ndim - 1
    if cut == Shard(0):
        inputs: Placement = Replicate()
        sums: tuple[Placement, Placement] = (Partial(), cut)
        made: Placement = Shard(last)
    elif cut == Shard(1):
        inputs, sums, made = Shard(last), (Shard(last), cut), Partial()
    else:
        inputs = made = _kept(x, last)
        sums = (inputs, Replicate() if inputs == Replicate() else Partial())
    spread = _placed(x, mesh, inputs)
    part = weight.to_local(grad_placements=[sums[1]])
    _check(part, tuple(weight.shape))
    rows = spread.to_local(grad_placements=[sums[0]])
    found = products.linear(rows, part, _bias(bias, made, sums[1]), by_row=by_row)
    shape = (*x.shape[:-1], weight.shape[0])
    return DTensor.from_local(
        found, mesh, [made], run_check=False, shape=torch.Size(shape), stride=_stride(shape)
    )


def _kept(x: Tensor, last: int) -> Placement:
    """How inputs of a weight that every rank has may stay cut: by samples or positions."""
    where = x.placements[0] if isinstance(x, DTensor) else Replicate()
    return where if isinstance(where, Shard) and where.dim < last else Replicate()


def _placed(x: Tensor, mesh: DeviceMesh, where: Placement) -> DTensor:
    if not isinstance(x, DTensor):
        x = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
    # A redistribution to where it is already would still reduce the gradient by itself.
    return x if x.placements == (where,) else x.redistribute(placements=[where])


def _bias(bias: Tensor | None, made: Placement, sums: Placement) -> Tensor | None:
    """What a rank adds: where ranks make parts of a sum, each adds an equal part."""
    if not isinstance(bias, DTensor):
        return bias
    if isinstance(made, Partial):
        return bias.to_local(grad_placements=[Partial()]) / bias.device_mesh.size()
    gradient = bias.placements[0] if isinstance(bias.placements[0], Shard) else sums
    return bias.to_local(grad_placements=[gradient])


def _check(part: Tensor, whole: tuple[int, ...]) -> None:
    if any(size % MULTIPLE for size in part.shape):
        raise ValueError(
            f"tensor_parallel cuts a weight of {whole[0]} x {whole[1]} into parts of "
            f"{part.shape[0]} x {part.shape[1]}, and float8 products take multiples of {MULTIPLE}; "
            "name such layers in fp8_configs['exclude'], or choose another degree."
        )


def _stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides))

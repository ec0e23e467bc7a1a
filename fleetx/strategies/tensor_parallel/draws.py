"""Random numbers for tensors that are spread over ranks: all ranks draw equally many.

So they stay together whatever else they draw. torch would look at the generator of a GPU before and
after each of these functions, which waits for the GPU and which a CUDA graph cannot; on a CPU it
would let ranks draw unequally many for parts of unequal sizes.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional as F

from fleetx.strategies.tensor_parallel.placing import as_spread, placed, whole, whole_arguments

Function = Callable[..., Any]
_OF_CHANNELS = frozenset({F.dropout1d, F.dropout2d, F.dropout3d})
_WITH_MEAN = frozenset({F.alpha_dropout, F.feature_alpha_dropout})
_FILLS = frozenset({Tensor.bernoulli_, Tensor.exponential_, Tensor.normal_, Tensor.uniform_})
_MADE = frozenset(
    {torch.bernoulli, torch.rand_like, torch.randn_like, torch.randint_like, Tensor.bernoulli}
)
DRAWS = frozenset({F.dropout, *_OF_CHANNELS, *_WITH_MEAN, *_FILLS, *_MADE})
"""Functions that draw random numbers for a tensor, or into it."""


def drawn(
    mesh: DeviceMesh, rank: int, func: Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """What one of ``DRAWS`` returns."""
    if func is F.dropout:
        return dropout(mesh, rank, *_asked(*args, **kwargs))
    if func in _OF_CHANNELS:
        return _other_dropout(mesh, func, *_asked(*args, **kwargs))
    if func in _WITH_MEAN:
        return _other_dropout(mesh, func, *_asked_with_mean(*args, **kwargs))
    if func in _FILLS and isinstance(args[0], DTensor):
        return _filled(mesh, func, *args, **kwargs)
    return whole(mesh, func, *args, **kwargs)


def _asked(
    input: DTensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> tuple[DTensor, float]:
    return input, p if training else 0.0


def _asked_with_mean(
    input: DTensor, p: float = 0.5, training: bool = False, inplace: bool = False
) -> tuple[DTensor, float]:
    return _asked(input, p, training)


def dropout(mesh: DeviceMesh, rank: int, input: DTensor, p: float) -> DTensor:
    """Zeros in place of some numbers."""
    if p == 0:
        return input
    where = input.placements[0]
    if not isinstance(where, Shard):
        return as_spread(F.dropout(placed(input, mesh, Replicate()).to_local(), p), mesh)
    if mesh.device_type == "cpu":
        mask = F.dropout(torch.ones(input.shape, dtype=input.dtype), p)
        return cast(DTensor, input * placed(mask, mesh, where))
    return dropout_by_parts(mesh, rank, input, p)


def dropout_by_parts(mesh: DeviceMesh, rank: int, input: DTensor, p: float) -> DTensor:
    """The same without memory for a whole mask: a rank drops numbers of its own part in its turn.

    What the others need is drawn for nothing, part by part.
    """
    (where,) = input.placements
    assert isinstance(where, Shard)
    part = dropped = input.to_local()
    each = -(-input.size(where.dim) // mesh.size())
    for turn in range(mesh.size()):
        if turn == rank:
            dropped = F.dropout(part, p)
            continue
        shape = list(input.shape)
        shape[where.dim] = max(0, min(each, shape[where.dim] - turn * each))
        F.dropout(torch.empty(shape, dtype=part.dtype, device=part.device), p)
    return DTensor.from_local(
        dropped, mesh, [where], run_check=False, shape=input.shape, stride=input.stride()
    )


def _other_dropout(mesh: DeviceMesh, func: Function, input: DTensor, p: float) -> Any:
    return whole(mesh, func, input, p, training=True) if p else input


def _filled(
    mesh: DeviceMesh, func: Function, target: DTensor, *args: Any, **kwargs: Any
) -> DTensor:
    """Each rank draws all that is written to a tensor, and takes what belongs to its part."""
    place = torch.empty(target.shape, dtype=target.dtype, device=target.device)
    found = as_spread(whole_arguments(mesh, func, place, *args, **kwargs), mesh)
    return cast(DTensor, target.copy_(placed(found, mesh, target.placements[0])))

"""Pieces of a tensor that is spread: torch has no gradient for one that is not used.

What autograd makes up for it is a plain tensor, which goes with no DTensor.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from typing_extensions import override

from fleetx.strategies.tensor_parallel.placing import as_spread

Cut = Callable[..., Any]
_STACKED: set[Cut] = {torch.unbind, Tensor.unbind}
CUTS: frozenset[Cut] = frozenset(
    {
        *(torch.split, torch.chunk, torch.tensor_split, torch.split_with_sizes),
        *(Tensor.split, Tensor.chunk, Tensor.tensor_split, Tensor.split_with_sizes),
        *_STACKED,
    }
)


def pieces(cut: Cut, *args: Any, **kwargs: Any) -> Any:
    """What the function of torch returns, with a gradient whichever pieces are used."""
    spread = args[0] if args else None
    if not isinstance(spread, DTensor) or not spread.requires_grad or not torch.is_grad_enabled():
        return cut(*args, **kwargs)
    last = args[1:] if cut in _STACKED else args[2:]
    dim = last[0] if last else kwargs.get("dim", 0)
    return _Pieces.apply(cut, dim, args[1:], kwargs, spread)  # type: ignore[no-untyped-call]


class _Pieces(torch.autograd.Function):
    """Cuts, and puts gradients together again."""

    @staticmethod
    @override
    def forward(
        ctx: Any, cut: Cut, dim: int, args: tuple[Any, ...], kwargs: dict[str, Any], spread: DTensor
    ) -> tuple[DTensor, ...]:
        """As by itself."""
        ctx.set_materialize_grads(False)
        found: tuple[DTensor, ...] = tuple(cut(spread, *args, **kwargs))
        ctx.joined = torch.stack if cut in _STACKED else torch.cat
        ctx.dim, ctx.mesh = dim, spread.device_mesh
        ctx.like = [(one.shape, one.dtype, one.device) for one in found]
        return found

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: DTensor | None) -> tuple[Any, ...]:
        """Zeros where a piece was not used."""

        def zeros(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> DTensor:
            return as_spread(torch.zeros(shape, dtype=dtype, device=device), ctx.mesh)

        parts = [
            zeros(*like) if gradient is None else gradient
            for gradient, like in zip(gradients, ctx.like, strict=True)
        ]
        return (None, None, None, None, ctx.joined(parts, ctx.dim))

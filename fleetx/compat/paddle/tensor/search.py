"""``paddle.tensor.search``: where numbers are, and their order."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

import torch

from fleetx.compat.dtypes import dtype_of
from fleetx.compat.tensors import op


def _place(function: Any, x: Any, axis: Any, keepdim: bool, dtype: Any) -> Any:
    if axis is None:
        found = torch.reshape(function(torch.reshape(x, (-1,))), [1] * (x.dim() if keepdim else 1))
    else:
        found = function(x, dim=axis, keepdim=keepdim)
        found = found if found.dim() else torch.reshape(found, (1,))
    return torch.Tensor.to(found, dtype_of(dtype))


@op
def argmax(
    x: Any, axis: Any = None, keepdim: bool = False, dtype: Any = "int64", name: str | None = None
) -> Any:
    """Where the largest number is."""
    return _place(torch.argmax, x, axis, keepdim, dtype)


@op
def argmin(
    x: Any, axis: Any = None, keepdim: bool = False, dtype: Any = "int64", name: str | None = None
) -> Any:
    """Where the smallest number is."""
    return _place(torch.argmin, x, axis, keepdim, dtype)


@op
def argsort(
    x: Any,
    axis: int = -1,
    descending: bool = False,
    stable: bool = False,
    name: str | None = None,
) -> Any:
    """Where the numbers are in their order."""
    return torch.argsort(x, dim=axis, descending=descending, stable=True)


@op
def sort(
    x: Any,
    axis: int = -1,
    descending: bool = False,
    stable: bool = False,
    name: str | None = None,
) -> Any:
    """The numbers in their order."""
    return torch.sort(x, dim=axis, descending=descending, stable=True)[0]


@op
def topk(
    x: Any,
    k: Any,
    axis: Any = None,
    largest: bool = True,
    sorted: bool = True,
    name: str | None = None,
) -> Any:
    """The largest numbers of an axis, and where they are."""
    count = int(k) if not isinstance(k, int) else k
    values, indices = torch.topk(x, count, -1 if axis is None else axis, largest, sorted)
    return values, indices


@op
def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Any:
    """Numbers of one tensor where a condition holds, of another elsewhere."""
    if x is None and y is None:
        return nonzero(condition, as_tuple=True)
    return torch.where(condition, x, y)


@op
def nonzero(x: Any, as_tuple: bool = False) -> Any:
    """Where the numbers are that are not zero."""
    if as_tuple:
        return tuple(torch.unsqueeze(part, 1) for part in torch.nonzero(x, as_tuple=True))
    return torch.nonzero(x)


@op
def searchsorted(
    sorted_sequence: Any,
    values: Any,
    out_int32: bool = False,
    right: bool = False,
    name: str | None = None,
) -> Any:
    """Where numbers belong in an ordered sequence."""
    return torch.searchsorted(sorted_sequence, values, out_int32=out_int32, right=right)


@op
def kthvalue(x: Any, k: int, axis: Any = None, keepdim: bool = False, name: Any = None) -> Any:
    """The number that is the k-th, and where it is."""
    return tuple(torch.kthvalue(x, k, -1 if axis is None else axis, keepdim))


@op
def mode(x: Any, axis: int = -1, keepdim: bool = False, name: str | None = None) -> Any:
    """The number that is there most often, and where."""
    return tuple(torch.mode(x, axis, keepdim))


@op
def masked_fill(x: Any, mask: Any, value: Any, name: str | None = None) -> Any:
    """One number where a mask is true."""
    return torch.masked_fill(x, mask, value)

"""``paddle.tensor.creation``: tensors from numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fleetx.compat import modes, recorded
from fleetx.compat.default_dtype import get_default_dtype
from fleetx.compat.dtypes import dtype_of
from fleetx.compat.paddle.device import current_device, device_of
from fleetx.compat.recorded import sizes_of
from fleetx.compat.tensors import Tensor, at_least_1d, op, wrap
from fleetx.record.variable import Variable


def made(factory: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> Any:
    """A tensor of a factory of torch: at once, or in every run of the program."""
    if modes.is_static():
        return recorded.made(factory, *args, **kwargs)
    return wrap(factory(*args, device=current_device(), **kwargs))


def _format(dtype: Any, start: Any = None) -> torch.dtype:
    return dtype_of(dtype if dtype is not None else start or get_default_dtype())


def to_tensor(data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True) -> Any:
    """A tensor of these numbers; Python's floats are of the default format, integers int64."""
    if isinstance(data, Variable):
        return data if dtype is None else data.to(dtype_of(dtype))
    found = torch.as_tensor(_numbers(data)).detach()
    wanted = dtype_of(dtype) if dtype is not None else _natural(data, found.dtype)
    if modes.is_static():
        return recorded.made(torch.clone, at_least_1d(found.to(wanted)))
    copied = at_least_1d(found.to(device_of(place), wanted, copy=True)).as_subclass(Tensor)
    moves = copied.is_floating_point() or copied.is_complex()
    return copied.requires_grad_(moves and not stop_gradient)


def _numbers(data: Any) -> Any:
    if isinstance(data, torch.Tensor):
        return data
    if isinstance(data, (list, tuple)) and any(isinstance(d, torch.Tensor) for d in data):
        return torch.stack([torch.as_tensor(part) for part in data])
    found = np.asarray(data)
    # Views against the order of memory, and arrays that must not be written, are copied.
    return np.array(found, order="C") if found.dtype != object else np.array(found.tolist())


def _natural(data: Any, found: torch.dtype) -> torch.dtype:
    """Of numbers without a format of their own."""
    if isinstance(data, (torch.Tensor, np.ndarray, np.generic)):
        return found
    first = data
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    if isinstance(first, (np.ndarray, np.generic, torch.Tensor)):
        return found
    usual = dtype_of(get_default_dtype())
    if found == torch.complex128 and usual != torch.float64:
        return torch.complex64
    return usual if found == torch.float64 else found


def zeros(shape: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Zeros."""
    return made(torch.zeros, sizes_of(shape), dtype=_format(dtype))


def ones(shape: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Ones."""
    return made(torch.ones, sizes_of(shape), dtype=_format(dtype))


def full(shape: Any, fill_value: Any, dtype: Any = None, name: str | None = None) -> Any:
    """One number everywhere; of the default format unless one is named."""
    value = fill_value.item() if _is_number(fill_value) else fill_value
    start = "bool" if isinstance(value, bool) else None
    return made(torch.full, sizes_of(shape), value, dtype=_format(dtype, start))


def _is_number(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, np.ndarray)) and not isinstance(value, Variable)


@op
def zeros_like(x: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Zeros of the same shape."""
    return torch.zeros_like(x, dtype=_format(dtype, x.dtype))


@op
def ones_like(x: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Ones of the same shape."""
    return torch.ones_like(x, dtype=_format(dtype, x.dtype))


@op
def full_like(x: Any, fill_value: Any, dtype: Any = None, name: str | None = None) -> Any:
    """One number everywhere, in the same shape."""
    return torch.full_like(x, fill_value, dtype=_format(dtype, x.dtype))


def empty(shape: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Any numbers: zeros here, so that runs are equal."""
    return zeros(shape, dtype)


def empty_like(x: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Any numbers of the same shape: zeros here."""
    return zeros_like(x, dtype)


def arange(
    start: Any = 0, end: Any = None, step: Any = 1, dtype: Any = None, name: str | None = None
) -> Any:
    """Numbers from start to end, without the end."""
    given = [0, start, step] if end is None else [start, end, step]
    given = [v.item() if _is_number(v) else v for v in given]
    start_dtype = "float32" if any(isinstance(v, float) for v in given) else "int64"
    return made(torch.arange, *given, dtype=_format(dtype, start_dtype))


def linspace(start: Any, stop: Any, num: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Numbers at equal distances, with both ends."""
    given = [v.item() if _is_number(v) else v for v in (start, stop, num)]
    return made(torch.linspace, given[0], given[1], int(given[2]), dtype=_format(dtype))


def eye(
    num_rows: int, num_columns: int | None = None, dtype: Any = None, name: str | None = None
) -> Any:
    """Ones on the diagonal."""
    return made(torch.eye, num_rows, num_columns or num_rows, dtype=_format(dtype))


def assign(x: Any, output: Any = None) -> Any:
    """A copy of a tensor or array; into another tensor where one is named."""
    value = x if isinstance(x, torch.Tensor) else to_tensor(x)
    if output is None:
        return wrap(torch.clone(value))
    if isinstance(output, Variable):
        return recorded.rebind(output, value)
    with torch.no_grad():
        output.copy_(value.reshape(tuple(output.shape)))
    return output


@op
def clone(x: Any, name: str | None = None) -> Any:
    """A copy through which gradients flow."""
    return torch.clone(x)


@op
def detach(x: Any) -> Any:
    """The same numbers, through which no gradient flows."""
    return torch.Tensor.detach(x)


def create_tensor(dtype: Any, name: str | None = None, persistable: bool = False) -> Any:
    """An empty tensor of a format, to be assigned."""
    return zeros([1], dtype)


@op
def diag(x: Any, offset: int = 0, padding_value: float = 0, name: str | None = None) -> Any:
    """A matrix with this diagonal, or the diagonal of a matrix."""
    found = torch.diag(x, offset)
    if padding_value and x.dim() == 1:
        mask = torch.diag(torch.ones_like(x, dtype=torch.bool), offset)
        return torch.where(mask, found, torch.full_like(found, padding_value))
    return found


@op
def meshgrid(*args: Any, **kwargs: Any) -> Any:
    """Coordinates of a grid."""
    given = args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
    return list(torch.meshgrid(*given, indexing="ij"))


@op
def tril(x: Any, diagonal: int = 0, name: str | None = None) -> Any:
    """What is not above a diagonal."""
    return torch.tril(x, diagonal)


@op
def triu(x: Any, diagonal: int = 0, name: str | None = None) -> Any:
    """What is not below a diagonal."""
    return torch.triu(x, diagonal)


def numel(x: Any, name: str | None = None) -> Any:
    """How many numbers there are, as a tensor."""
    return to_tensor([torch.numel(x)])

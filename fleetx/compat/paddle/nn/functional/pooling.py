"""``paddle.nn.functional.pooling``: largest numbers and means of windows."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from collections.abc import Callable
from typing import Any

from torch.nn import functional as F

from fleetx.compat.paddle.nn.functional.common import several
from fleetx.compat.paddle.nn.functional.conv import (
    channels_back,
    channels_first,
    fitting,
    margins,
    padded,
)
from fleetx.compat.tensors import op

_MAX: dict[int, Callable[..., Any]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG: dict[int, Callable[..., Any]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _max(
    count: int, x: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, mask: bool, data: str
) -> Any:
    sizes = several(kernel, count)
    strides = sizes if stride is None else several(stride, count)
    x = channels_first(x, data)
    around = margins(padding, x, sizes, strides, [1] * count)
    sizes = fitting(sizes, x, around)
    x, amounts = padded(x, around, float("-inf"))
    found = _MAX[count](x, sizes, strides, amounts, 1, ceil, mask)
    if mask:
        return tuple(channels_back(part, data) for part in found)
    return channels_back(found, data)


def _avg(
    count: int,
    x: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil: bool,
    exclusive: bool,
    divisor: Any,
    data: str,
) -> Any:
    sizes = several(kernel, count)
    strides = sizes if stride is None else several(stride, count)
    x = channels_first(x, data)
    around = margins(padding, x, sizes, strides, [1] * count)
    if exclusive and any(before != after for before, after in around):
        raise ValueError(
            "avg_pool with exclusive=True and unequal padding is not here; pad with "
            "paddle.nn.functional.pad, or set exclusive=False."
        )
    sizes = fitting(sizes, x, around)
    x, amounts = padded(x, around)
    options = {} if count == 1 else {"divisor_override": divisor}
    found = _AVG[count](x, sizes, strides, amounts, ceil, not exclusive, **options)
    return channels_back(found, data)


@op
def max_pool1d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Any:
    """The largest number of each window of one axis."""
    return _max(1, x, kernel_size, stride, padding, ceil_mode, return_mask, "NCL")


@op
def max_pool2d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Any:
    """The largest number of each window of two axes."""
    return _max(2, x, kernel_size, stride, padding, ceil_mode, return_mask, data_format)


@op
def max_pool3d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    return_mask: bool = False,
    ceil_mode: bool = False,
    data_format: str = "NCDHW",
    name: str | None = None,
) -> Any:
    """The largest number of each window of three axes."""
    return _max(3, x, kernel_size, stride, padding, ceil_mode, return_mask, data_format)


@op
def avg_pool1d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    exclusive: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
) -> Any:
    """The mean of each window of one axis."""
    return _avg(1, x, kernel_size, stride, padding, ceil_mode, exclusive, None, "NCL")


@op
def avg_pool2d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    exclusive: bool = True,
    divisor_override: Any = None,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Any:
    """The mean of each window of two axes."""
    return _avg(
        2, x, kernel_size, stride, padding, ceil_mode, exclusive, divisor_override, data_format
    )


@op
def avg_pool3d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    exclusive: bool = True,
    divisor_override: Any = None,
    data_format: str = "NCDHW",
    name: str | None = None,
) -> Any:
    """The mean of each window of three axes."""
    return _avg(
        3, x, kernel_size, stride, padding, ceil_mode, exclusive, divisor_override, data_format
    )


def _adaptive(function: Callable[..., Any], x: Any, size: Any, data: str) -> Any:
    sizes = tuple(size) if isinstance(size, (list, tuple)) else size
    return channels_back(function(channels_first(x, data), sizes), data)


@op
def adaptive_avg_pool1d(x: Any, output_size: Any, name: str | None = None) -> Any:
    """Means of so many windows of one axis."""
    return _adaptive(F.adaptive_avg_pool1d, x, output_size, "NCL")


@op
def adaptive_avg_pool2d(
    x: Any, output_size: Any, data_format: str = "NCHW", name: str | None = None
) -> Any:
    """Means of so many windows of two axes."""
    return _adaptive(F.adaptive_avg_pool2d, x, output_size, data_format)


@op
def adaptive_avg_pool3d(
    x: Any, output_size: Any, data_format: str = "NCDHW", name: str | None = None
) -> Any:
    """Means of so many windows of three axes."""
    return _adaptive(F.adaptive_avg_pool3d, x, output_size, data_format)


@op
def adaptive_max_pool1d(
    x: Any, output_size: Any, return_mask: bool = False, name: str | None = None
) -> Any:
    """The largest numbers of so many windows of one axis."""
    pool: Callable[..., Any] = F.adaptive_max_pool1d
    return pool(x, output_size, return_mask)


@op
def adaptive_max_pool2d(
    x: Any, output_size: Any, return_mask: bool = False, name: str | None = None
) -> Any:
    """The largest numbers of so many windows of two axes."""
    pool: Callable[..., Any] = F.adaptive_max_pool2d
    return pool(x, output_size, return_mask)


@op
def adaptive_max_pool3d(
    x: Any, output_size: Any, return_mask: bool = False, name: str | None = None
) -> Any:
    """The largest numbers of so many windows of three axes."""
    pool: Callable[..., Any] = F.adaptive_max_pool3d
    return pool(x, output_size, return_mask)

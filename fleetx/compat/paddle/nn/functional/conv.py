"""``paddle.nn.functional.conv``: convolutions."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat.paddle.nn.functional.common import several
from fleetx.compat.tensors import op

CONVS: dict[int, Callable[..., Any]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: dict[int, Callable[..., Any]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


def fitting(sizes: Sequence[int], x: Any, around: Sequence[tuple[int, int]]) -> list[int]:
    """Windows that are no larger than what they pass over.

    Paddle rounds the number of steps towards zero, so a picture that is a little smaller than the
    window gives one number, where torch refuses.
    """
    found = []
    for at, (size, (before, after)) in enumerate(zip(sizes, around, strict=True)):
        length = x.shape[at + 2]
        whole = length + before + after if isinstance(length, int) else size
        found.append(min(size, whole))
    return found


def margins(
    padding: Any, x: Any, kernel: list[int], stride: list[int], dilation: list[int]
) -> list[tuple[int, int]]:
    """Zeros before and after each axis of space, of any spelling of ``padding``."""
    count = len(kernel)
    if isinstance(padding, str):
        if padding.upper() == "VALID":
            return [(0, 0)] * count
        return [_same(x.size(2 + at), kernel[at], stride[at], dilation[at]) for at in range(count)]
    if isinstance(padding, (list, tuple)) and padding and isinstance(padding[0], (list, tuple)):
        pairs = [(int(a), int(b)) for a, b in padding]
        outer = [pair for pair in pairs if pair != (0, 0)]
        return pairs[-count:] if pairs[:2] == [(0, 0)] * 2 else (outer or pairs[1:-1])[:count]
    flat = several(padding, count)
    if len(flat) == 2 * count and count > 0 and len(flat) != count:
        return [(flat[2 * at], flat[2 * at + 1]) for at in range(count)]
    return [(amount, amount) for amount in flat]


def _same(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    wide = (kernel - 1) * dilation + 1
    total = max((-(-size // stride) - 1) * stride + wide - size, 0)
    return total // 2, total - total // 2


def padded(x: Any, around: list[tuple[int, int]], value: float = 0.0) -> tuple[Any, list[int]]:
    """The input and what a function of torch shall add: unequal margins are added here."""
    if all(before == after for before, after in around):
        return x, [before for before, _ in around]
    turned = [amount for pair in reversed(around) for amount in pair]
    return F.pad(x, turned, "constant", value), [0] * len(around)


def channels_first(x: Any, data_format: str) -> Any:
    """Space behind the channels, as torch has it."""
    return torch.movedim(x, -1, 1) if data_format.endswith("C") else x


def channels_back(x: Any, data_format: str) -> Any:
    """Channels where the script has them."""
    return torch.movedim(x, 1, -1) if data_format.endswith("C") else x


def _conv(
    count: int,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    data_format: str,
) -> Any:
    x = channels_first(x, data_format)
    strides, dilations = several(stride, count), several(dilation, count)
    kernel = [int(size) for size in weight.size()[2:]]
    x, around = padded(x, margins(padding, x, kernel, strides, dilations))
    found = CONVS[count](x, weight, bias, strides, around, dilations, groups)
    return channels_back(found, data_format)


@op
def conv1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    data_format: str = "NCL",
    name: str | None = None,
) -> Any:
    """A convolution over one axis."""
    return _conv(1, x, weight, bias, stride, padding, dilation, groups, data_format)


@op
def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Any:
    """A convolution over two axes."""
    return _conv(2, x, weight, bias, stride, padding, dilation, groups, data_format)


@op
def conv3d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    data_format: str = "NCDHW",
    name: str | None = None,
) -> Any:
    """A convolution over three axes."""
    return _conv(3, x, weight, bias, stride, padding, dilation, groups, data_format)


def transposed(
    count: int,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
    output_size: Any,
    data_format: str,
) -> Any:
    """A convolution the other way, to an output size where one is named."""
    x = channels_first(x, data_format)
    strides, dilations = several(stride, count), several(dilation, count)
    kernel = [int(size) for size in weight.size()[2:]]
    around = [before for before, _ in margins(padding, x, kernel, strides, dilations)]
    extra = several(output_padding, count)
    if output_size is not None:
        extra = [
            wanted - _least(x.size(2 + at), kernel[at], strides[at], around[at], dilations[at])
            for at, wanted in enumerate(several(output_size, count))
        ]
    made = TRANSPOSED[count](x, weight, bias, strides, around, extra, groups, dilations)
    return channels_back(made, data_format)


def _least(size: int, kernel: int, stride: int, around: int, dilation: int) -> int:
    return (size - 1) * stride - 2 * around + dilation * (kernel - 1) + 1


@op
def conv2d_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
    data_format: str = "NCHW",
    output_size: Any = None,
    name: str | None = None,
) -> Any:
    """A convolution over two axes, the other way."""
    return transposed(
        2,
        *(x, weight, bias, stride, padding, output_padding, groups, dilation),
        output_size,
        data_format,
    )


@op
def conv3d_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
    output_size: Any = None,
    data_format: str = "NCDHW",
    name: str | None = None,
) -> Any:
    """A convolution over three axes, the other way."""
    return transposed(
        3,
        *(x, weight, bias, stride, padding, output_padding, groups, dilation),
        output_size,
        data_format,
    )


@op
def conv1d_transpose(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
    output_size: Any = None,
    data_format: str = "NCL",
    name: str | None = None,
) -> Any:
    """A convolution over one axis, the other way."""
    return transposed(
        1,
        *(x, weight, bias, stride, padding, output_padding, groups, dilation),
        output_size,
        data_format,
    )

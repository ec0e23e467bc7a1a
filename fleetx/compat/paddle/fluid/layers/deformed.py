"""``deformable_conv``: a convolution over pixels that are read elsewhere, as each window says."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fleetx.compat import unique_names
from fleetx.compat.paddle.fluid.layers.common import named, pair
from fleetx.compat.paddle.fluid.layers.linear import BIAS, deviation_of
from fleetx.compat.parameters import create
from fleetx.compat.recorded import fake, operator, settle
from fleetx.record.variable import Variable
from fleetx.static.layers.parameters import size_of


def deformable_conv(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    offset: Any,
    mask: Any,
    num_filters: int,
    filter_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int | None = None,
    deformable_groups: int | None = None,
    im2col_step: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    modulated: bool = True,
    name: str | None = None,
) -> Any:
    """The convolution with a weight of its own; ``mask`` weighs pixels where it is modulated."""
    settle(input)
    channels, sizes, parts = size_of(input, 1), pair(filter_size), groups or 1
    layer = name or unique_names.generate("deformable_conv")
    shape, start = [num_filters, channels // parts, *sizes], deviation_of(sizes, channels)
    weight = create(layer, param_attr, shape, input.dtype, default=start)
    bias = create(layer, bias_attr, [num_filters], input.dtype, default=BIAS, is_bias=True)
    window = stride, padding, dilation, deformable_groups or 1, parts
    given = input, offset, weight, bias, mask if modulated else None
    return deformed(*given, *window, name)


def deformed(  # noqa: PLR0917
    x: Any,
    offset: Any,
    weight: Any,
    bias: Any,
    mask: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    parts: int,
    groups: int,
    name: str | None,
) -> Any:
    """The convolution with a weight that is given."""
    options: dict[str, Any] = {
        "stride": pair(stride),
        "padding": pair(padding),
        "dilation": pair(dilation),
        "parts": int(parts),
        "groups": int(groups),
    }
    given = x, offset, weight, bias, mask
    if not isinstance(x, Variable):
        return _deformed(*given, **options)
    places = [size_of(offset, 2), size_of(offset, 3)]
    like = fake([x.fake.shape[0], size_of(weight, 0), *places], x.dtype, like=given)
    return named(operator(_deformed, *given, like=like, **options), name)


def _deformed(
    x: Tensor,
    offset: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    parts: int,
    groups: int,
) -> Tensor:
    count, window = len(x), math.prod(weight.shape[2:])
    grid = _places(offset, list(weight.shape[2:]), stride, padding, dilation, parts)
    size = grid.new_tensor([x.shape[3], x.shape[2]])
    grid = ((grid * 2 + 1) / size - 1).flatten(0, 1).flatten(1, 2)
    # Channels that are read at the same places are one image.
    images = x.reshape(count * parts, -1, *x.shape[2:])
    read = F.grid_sample(images, grid.to(x.dtype), align_corners=False)
    read = read.reshape(count, parts, -1, window, *offset.shape[2:])
    if mask is not None:
        read = read * mask.reshape(count, parts, 1, window, *offset.shape[2:])
    read = read.reshape(count, groups, -1, math.prod(offset.shape[2:]))
    made = torch.matmul(weight.reshape(groups, weight.shape[0] // groups, -1), read)
    made = made.reshape(count, weight.shape[0], *offset.shape[2:])
    return made if bias is None else made + bias[:, None, None]


def _places(  # noqa: PLR0917
    offset: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    parts: int,
) -> Tensor:
    """Column and row of each pixel of each window: [N, parts, pixels of a window, H, W, 2]."""
    moved = offset.reshape(len(offset), parts, -1, 2, *offset.shape[2:]).movedim(3, -1)
    rows, columns = (
        torch.arange(size, device=offset.device) * step - edge
        for size, step, edge in zip(offset.shape[2:], stride, padding, strict=True)
    )
    down, across = (
        torch.arange(size, device=offset.device) * apart
        for size, apart in zip(kernel, dilation, strict=True)
    )
    y = (down[:, None] + rows)[:, None, :, None]
    x = (across[:, None] + columns)[None, :, None, :]
    regular = torch.stack(torch.broadcast_tensors(y, x), -1).flatten(0, 1)
    return (moved + regular).flip(-1)

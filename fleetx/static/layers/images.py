"""Layers over images: convolutions and pooling."""

from torch import Tensor, nn
from torch.nn import functional as F

from fleetx.record.error import ProgramError
from fleetx.record.variable import Variable, as_variable
from fleetx.static.layers.parameters import Activation, Attr, applied, one_of, size_of

Pair = int | tuple[int, int]


def conv2d(
    input: Tensor,
    num_filters: int,
    filter_size: Pair,
    stride: Pair = 1,
    padding: Pair | str = 0,
    *,
    dilation: Pair = 1,
    groups: int = 1,
    param_attr: Attr = None,
    weight_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation = None,
    activation: Activation = None,
    name: str | None = None,
) -> Variable:
    """A convolution over images [N, C, H, W]."""
    channels = size_of(input, 1)
    return applied(
        "conv2d",
        lambda: nn.Conv2d(
            channels,
            num_filters,
            filter_size,
            stride,
            padding,
            dilation,
            groups,
            bias=bias_attr is not False,
        ),
        input,
        name=name,
        weight=one_of(param_attr=param_attr, weight_attr=weight_attr),
        bias=bias_attr,
        act=one_of(act=act, activation=activation),
    )


def conv2d_transpose(
    input: Tensor,
    num_filters: int,
    filter_size: Pair,
    stride: Pair = 1,
    padding: Pair = 0,
    *,
    groups: int = 1,
    param_attr: Attr = None,
    weight_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation = None,
    activation: Activation = None,
    name: str | None = None,
) -> Variable:
    """The convolution whose gradient ``conv2d`` is."""
    channels, bias = size_of(input, 1), bias_attr is not False
    return applied(
        "conv2d_transpose",
        lambda: nn.ConvTranspose2d(
            channels, num_filters, filter_size, stride, padding, groups=groups, bias=bias
        ),
        input,
        name=name,
        weight=one_of(param_attr=param_attr, weight_attr=weight_attr),
        bias=bias_attr,
        act=one_of(act=act, activation=activation),
    )


def pool2d(
    input: Tensor,
    pool_size: Pair = 2,
    pool_type: str = "max",
    pool_stride: Pair = 1,
    pool_padding: Pair = 0,
    *,
    global_pooling: bool = False,
    exclusive: bool = True,
) -> Variable:
    """The largest ("max") or the mean number ("avg") of every window.

    Args:
        input: images [N, C, H, W].
        pool_size: of a window.
        pool_type: "max" or "avg".
        pool_stride: from a window to the next.
        pool_padding: around the image.
        global_pooling: one window over the whole image.
        exclusive: leave padding out of a mean; False counts it as zeros, as torch does.
    """
    if pool_type not in {"max", "avg"}:
        raise ProgramError(f"pool2d has the types 'max' and 'avg', got {pool_type!r}")
    if global_pooling:
        reduce = F.adaptive_max_pool2d if pool_type == "max" else F.adaptive_avg_pool2d
        return as_variable(reduce(input, 1), "pool2d()")
    window = pool_size, pool_stride, pool_padding
    if pool_type == "max":
        return as_variable(F.max_pool2d(input, *window), "pool2d()")
    found = F.avg_pool2d(input, *window, count_include_pad=not exclusive)
    return as_variable(found, "pool2d()")

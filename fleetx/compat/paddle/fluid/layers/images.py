"""Layers of ``paddle.fluid.layers`` over images and volumes: convolutions and pooling."""

from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat import unique_names
from fleetx.compat.paddle.fluid.layers.common import activated, named, pair
from fleetx.compat.paddle.fluid.layers.linear import BIAS, WEIGHT, deviation_of
from fleetx.compat.paddle.nn.functional.conv import fitting
from fleetx.compat.parameters import create
from fleetx.compat.recorded import settle
from fleetx.static.layers.parameters import size_of


def first(x: Any, data_format: str) -> Any:
    """Channels to dimension 1."""
    if data_format in {"NHWC", "NDHWC"}:
        return torch.movedim(x, -1, 1)
    if data_format not in {"NCHW", "NCDHW", "AnyLayout"}:
        raise ValueError(f"data_format={data_format!r} is neither 'NCHW' nor 'NHWC'.")
    return x


def last(x: Any, data_format: str) -> Any:
    """Channels back to where they were."""
    return torch.movedim(x, 1, -1) if data_format in {"NHWC", "NDHWC"} else x


def paddings(given: Any, count: int) -> Any:
    """One number for each dimension, two for each of them, or a word."""
    if isinstance(given, str):
        return given.lower()
    if isinstance(given, (list, tuple)) and given and isinstance(given[0], (list, tuple)):
        inner = [tuple(part) for part in given if len(given) == count or any(part)]
        inner = inner or [(0, 0)] * count
        given = [number for part in inner[-count:] for number in part]
    if isinstance(given, (list, tuple)) and len(given) == 2 * count:
        both = [tuple(given[2 * at : 2 * at + 2]) for at in range(count)]
        if all(before == after for before, after in both):
            return tuple(before for before, _ in both)
        return both
    return pair(given, count)


def around(x: Any, padding: Any, value: float = 0.0) -> tuple[Any, Any]:
    """The input with uneven padding around it, and the padding that is left to do."""
    if isinstance(padding, list):
        flat = [number for both in reversed(padding) for number in both]
        return F.pad(x, flat, value=value), 0
    return x, padding


def _same(x: Any, sizes: Any, stride: Any, dilation: Any) -> list[tuple[int, int]]:
    """Padding with which a result is as large as the input over the stride."""
    found = []
    for at, (size, step, apart) in enumerate(zip(sizes, stride, dilation, strict=True)):
        length = size_of(x, at + 2)
        wanted = -(-length // step)
        total = max((wanted - 1) * step + (size - 1) * apart + 1 - length, 0)
        found.append((total // 2, total - total // 2))
    return found


def _convolved(  # noqa: PLR0917
    kind: str,
    input: Any,
    num_filters: int,
    filter_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int | None,
    param_attr: Any,
    bias_attr: Any,
    act: Any,
    name: str | None,
    data_format: str,
) -> Any:
    settle(input)
    count = 3 if kind == "conv3d" else 2
    x = first(input, data_format)
    channels, sizes, parts = size_of(x, 1), pair(filter_size, count), groups or 1
    layer = name or unique_names.generate(kind)
    shape = [num_filters, channels // parts, *sizes]
    start = deviation_of(sizes, channels)
    weight = create(layer, param_attr, shape, x.dtype, default=start)
    steps, apart = pair(stride, count), pair(dilation, count)
    wanted = paddings(padding, count)
    wanted = {"valid": 0, "same": None}[wanted] if isinstance(wanted, str) else wanted
    x, rest = around(x, _same(x, sizes, steps, apart) if wanted is None else wanted)
    bias = create(layer, bias_attr, [num_filters], x.dtype, default=BIAS, is_bias=True)
    convolve = F.conv3d if count == 3 else F.conv2d
    found = convolve(x, weight, bias, steps, rest, apart, parts)
    done = 1 + (bias is not None) + (act is not None)
    return named(activated(last(found, data_format), act), name, done)


def conv2d(  # noqa: PLR0917
    input: Any,
    num_filters: int,
    filter_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: Any = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Any:
    """A convolution over images."""
    channels = size_of(input, 1 if data_format == "NCHW" else -1)
    deep = groups == channels and num_filters % channels == 0 and not use_cudnn
    given = (input, num_filters, filter_size, stride, padding, dilation, groups)
    kind = "depthwise_conv2d" if deep else "conv2d"
    return _convolved(kind, *given, param_attr, bias_attr, act, name, data_format)


def conv3d(  # noqa: PLR0917
    input: Any,
    num_filters: int,
    filter_size: Any,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: Any = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Any:
    """A convolution over volumes."""
    given = (input, num_filters, filter_size, stride, padding, dilation, groups)
    return _convolved("conv3d", *given, param_attr, bias_attr, act, name, data_format)


def conv2d_transpose(  # noqa: PLR0917
    input: Any,
    num_filters: int,
    output_size: Any = None,
    filter_size: Any = None,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: Any = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Any:
    """The convolution whose gradient ``conv2d`` is."""
    given = (input, num_filters, output_size, filter_size, padding, stride, dilation, groups or 1)
    return _turned("conv2d_transpose", *given, param_attr, bias_attr, act, name, data_format)


def conv3d_transpose(  # noqa: PLR0917
    input: Any,
    num_filters: int,
    output_size: Any = None,
    filter_size: Any = None,
    padding: Any = 0,
    stride: Any = 1,
    dilation: Any = 1,
    groups: int | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_cudnn: bool = True,
    act: Any = None,
    name: str | None = None,
    data_format: str = "NCDHW",
) -> Any:
    """The convolution whose gradient ``conv3d`` is."""
    given = (input, num_filters, output_size, filter_size, padding, stride, dilation, groups or 1)
    return _turned("conv3d_transpose", *given, param_attr, bias_attr, act, name, data_format)


def _turned(  # noqa: PLR0917
    kind: str,
    input: Any,
    num_filters: int,
    output_size: Any,
    filter_size: Any,
    padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    param_attr: Any,
    bias_attr: Any,
    act: Any,
    name: str | None,
    data_format: str,
) -> Any:
    """Sizes of the filter and of the result follow from each other."""
    settle(input)
    x, layer = first(input, data_format), name or unique_names.generate(kind)
    axes = range(x.dim() - 2)
    steps, edge, apart = (pair(value, len(axes)) for value in (stride, padding, dilation))
    least = [(size_of(x, at + 2) - 1) * steps[at] - 2 * edge[at] for at in axes]
    wanted = None if output_size is None else pair(output_size, len(axes))
    if filter_size is None:
        if wanted is None:
            raise ValueError(f"{kind}() needs filter_size or output_size; give one.")
        filter_size = [(wanted[at] - least[at] - 1) // apart[at] + 1 for at in axes]
    sizes = pair(filter_size, len(axes))
    shape = [size_of(x, 1), num_filters // groups, *sizes]
    weight = create(layer, param_attr, shape, x.dtype, default=WEIGHT)
    bias = create(layer, bias_attr, [num_filters], x.dtype, default=BIAS, is_bias=True)
    extra = [0 for _ in axes]
    if wanted is not None:
        extra = [wanted[at] - least[at] - apart[at] * (sizes[at] - 1) - 1 for at in axes]
    call = F.conv_transpose2d if len(axes) == 2 else F.conv_transpose3d
    found = call(x, weight, bias, steps, edge, extra, groups, apart)
    return named(activated(last(found, data_format), act), name)


def _pooled(  # noqa: PLR0917
    count: int,
    input: Any,
    pool_size: Any,
    pool_type: str,
    pool_stride: Any,
    pool_padding: Any,
    global_pooling: bool,
    ceil_mode: bool,
    exclusive: bool,
    data_format: str,
) -> Any:
    if pool_type not in {"max", "avg"}:
        raise ValueError(f"pool_type={pool_type!r} is neither 'max' nor 'avg'.")
    x, over = first(input, data_format), tuple(range(2, 2 + count))
    if global_pooling:
        whole = torch.amax if pool_type == "max" else torch.mean
        return last(whole(x, over, keepdim=True), data_format)
    sizes, steps = pair(pool_size, count), pair(pool_stride, count)
    wanted = paddings(pool_padding, count)
    if isinstance(wanted, str):
        wanted = [(0, 0)] * count if wanted == "valid" else _same(x, sizes, steps, (1,) * count)
    edges = wanted if isinstance(wanted, list) else [(edge, edge) for edge in wanted]
    sizes = tuple(fitting(sizes, x, edges))
    if pool_type == "max":
        return last(_largest(count, x, sizes, steps, wanted, ceil_mode), data_format)
    mean: Any = F.avg_pool3d if count == 3 else F.avg_pool2d
    if isinstance(wanted, list):
        padded, _ = around(x, wanted)
        found = mean(padded, sizes, steps, 0, ceil_mode)
        if exclusive:
            there, _ = around(torch.ones_like(x[:1, :1]), wanted)
            found = found / mean(there, sizes, steps, 0, ceil_mode)
    else:
        found = mean(x, sizes, steps, wanted, ceil_mode, not exclusive)
    return last(found, data_format)


def _largest(count: int, x: Any, sizes: Any, steps: Any, wanted: Any, ceil: bool) -> Any:  # noqa: PLR0917
    pool: Any = F.max_pool3d if count == 3 else F.max_pool2d
    if not isinstance(wanted, list) and any(
        2 * edge > size for edge, size in zip(wanted, sizes, strict=True)
    ):
        wanted = [(edge, edge) for edge in wanted]  # torch pads by half a window at most
    x, rest = around(x, wanted, float("-inf"))
    return pool(x, sizes, steps, rest, 1, ceil)


def pool2d(  # noqa: PLR0917
    input: Any,
    pool_size: Any = -1,
    pool_type: str = "max",
    pool_stride: Any = 1,
    pool_padding: Any = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCHW",
) -> Any:
    """The largest or the mean number of every window of images."""
    given = (input, pool_size, pool_type, pool_stride, pool_padding, global_pooling)
    return named(_pooled(2, *given, ceil_mode, exclusive, data_format), name)


def pool3d(  # noqa: PLR0917
    input: Any,
    pool_size: Any = -1,
    pool_type: str = "max",
    pool_stride: Any = 1,
    pool_padding: Any = 0,
    global_pooling: bool = False,
    use_cudnn: bool = True,
    ceil_mode: bool = False,
    name: str | None = None,
    exclusive: bool = True,
    data_format: str = "NCDHW",
) -> Any:
    """The largest or the mean number of every window of volumes."""
    given = (input, pool_size, pool_type, pool_stride, pool_padding, global_pooling)
    return named(_pooled(3, *given, ceil_mode, exclusive, data_format), name)


def adaptive_pool2d(
    input: Any,
    pool_size: Any,
    pool_type: str = "max",
    require_index: bool = False,
    name: str | None = None,
) -> Any:
    """So many windows over the whole image."""
    if require_index:
        return F.adaptive_max_pool2d(input, pair(pool_size), return_indices=True)
    pool: Any = F.adaptive_max_pool2d if pool_type == "max" else F.adaptive_avg_pool2d
    return named(pool(input, pair(pool_size)), name)


def lrn(  # noqa: PLR0917
    input: Any,
    n: int = 5,
    k: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Any:
    """Divided by what neighbouring channels have."""
    found = F.local_response_norm(first(input, data_format), n, alpha * n, beta, k)
    return named(last(found, data_format), name)

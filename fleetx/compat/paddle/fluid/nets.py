"""``paddle.fluid.nets``: layers that often stand together."""

import math
from typing import Any

import torch

from fleetx.compat.paddle.fluid.layers.activation import softmax
from fleetx.compat.paddle.fluid.layers.images import conv2d, pool2d
from fleetx.compat.paddle.fluid.layers.linear import dropout, fc
from fleetx.compat.paddle.fluid.layers.norms import batch_norm
from fleetx.compat.paddle.fluid.layers.sequence import sequence_conv, sequence_pool


def simple_img_conv_pool(  # noqa: PLR0917
    input: Any,
    num_filters: int,
    filter_size: Any,
    pool_size: Any,
    pool_stride: Any,
    pool_padding: Any = 0,
    pool_type: str = "max",
    global_pooling: bool = False,
    conv_stride: Any = 1,
    conv_padding: Any = 0,
    conv_dilation: Any = 1,
    conv_groups: int | None = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Any = None,
    use_cudnn: bool = True,
) -> Any:
    """A convolution, an activation and pooling."""
    made = conv2d(
        input,
        num_filters,
        filter_size,
        conv_stride,
        conv_padding,
        conv_dilation,
        conv_groups,
        param_attr,
        bias_attr,
        act=act,
    )
    return pool2d(made, pool_size, pool_type, pool_stride, pool_padding, global_pooling)


def img_conv_group(  # noqa: PLR0917
    input: Any,
    conv_num_filter: Any,
    pool_size: Any,
    conv_padding: Any = 1,
    conv_filter_size: Any = 3,
    conv_act: Any = None,
    param_attr: Any = None,
    conv_with_batchnorm: Any = False,
    conv_batchnorm_drop_rate: Any = 0.0,
    pool_stride: Any = 1,
    pool_type: str = "max",
    use_cudnn: bool = True,
) -> Any:
    """Convolutions one behind the other, with batch norms and dropout between, and pooling."""
    count = len(conv_num_filter)

    def each(given: Any) -> list[Any]:
        return list(given) if isinstance(given, (list, tuple)) else [given] * count

    attrs, norms = each(param_attr), each(conv_with_batchnorm)
    edges, sizes, drops = map(each, (conv_padding, conv_filter_size, conv_batchnorm_drop_rate))
    found = input
    for at, filters in enumerate(conv_num_filter):
        act = None if norms[at] else conv_act
        options = {"padding": edges[at], "param_attr": attrs[at], "act": act}
        found = conv2d(found, filters, sizes[at], **options)
        if norms[at]:
            found = batch_norm(found, act=conv_act)
            found = dropout(found, drops[at]) if abs(drops[at]) > 1e-5 else found
    return pool2d(found, pool_size, pool_type, pool_stride)


def sequence_conv_pool(  # noqa: PLR0917
    input: Any,
    num_filters: int,
    filter_size: int,
    param_attr: Any = None,
    act: Any = "sigmoid",
    pool_type: str = "max",
    bias_attr: Any = None,
) -> Any:
    """A convolution along records, and one row for each record."""
    options = {"param_attr": param_attr, "bias_attr": bias_attr, "act": act}
    return sequence_pool(sequence_conv(input, num_filters, filter_size, **options), pool_type)


def glu(input: Any, dim: int = -1) -> Any:
    """One half times the sigmoid of the other."""
    first, second = torch.chunk(input, 2, dim)
    return first * torch.sigmoid(second)


def scaled_dot_product_attention(
    queries: Any, keys: Any, values: Any, num_heads: int = 1, dropout_rate: float = 0.0
) -> Any:
    """Attention of [batch, length, width] tensors."""
    if num_heads > 1:  # Paddle projects only then
        queries, keys, values = (
            fc(x, int(x.shape[-1]), num_flatten_dims=2, bias_attr=False)
            for x in (queries, keys, values)
        )
    q, k, v = (_heads(x, num_heads) for x in (queries, keys, values))
    scores = torch.matmul(q / math.sqrt(int(q.shape[-1])), torch.transpose(k, -1, -2))
    weights = softmax(scores)
    weights = dropout(weights, dropout_rate) if dropout_rate else weights
    found = torch.matmul(weights, v)
    return torch.flatten(torch.transpose(found, 1, 2), 2) if num_heads > 1 else found


def _heads(x: Any, count: int) -> Any:
    if count == 1:
        return x
    width = int(x.shape[-1]) // count
    return torch.transpose(torch.reshape(x, (x.shape[0], x.shape[1], count, width)), 1, 2)

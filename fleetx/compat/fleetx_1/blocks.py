"""Networks of FleetX 1's models, out of ``fluid.layers``, with Paddle's names."""

from typing import Any

from fleetx.compat.paddle.fluid.layers.activation import softmax
from fleetx.compat.paddle.fluid.layers.elementwise import elementwise_add
from fleetx.compat.paddle.fluid.layers.images import conv2d, pool2d
from fleetx.compat.paddle.fluid.layers.linear import dropout, fc
from fleetx.compat.paddle.fluid.layers.manipulation import reshape, transpose
from fleetx.compat.paddle.fluid.layers.norms import batch_norm, layer_norm
from fleetx.compat.paddle.fluid.layers.reduction import matmul

RESNET50 = (3, 4, 6, 3)
"""Blocks of each stage."""


def conv_bn(  # noqa: PLR0917
    x: Any, filters: int, size: int, stride: int = 1, act: str | None = None, layout: str = "NCHW"
) -> Any:
    """A convolution without bias, and batch normalisation."""
    made = conv2d(x, filters, size, stride, (size - 1) // 2, bias_attr=False, data_format=layout)
    return batch_norm(made, act=act, data_layout=layout)


def bottleneck(x: Any, filters: int, stride: int, layout: str) -> Any:
    """Three convolutions around which the input flows."""
    inner = conv_bn(x, filters, 1, act="relu", layout=layout)
    inner = conv_bn(inner, filters, 3, stride, act="relu", layout=layout)
    inner = conv_bn(inner, 4 * filters, 1, layout=layout)
    channels = x.shape[1] if layout == "NCHW" else x.shape[3]
    same = stride == 1 and channels == 4 * filters
    short = x if same else conv_bn(x, 4 * filters, 1, stride, layout=layout)
    return elementwise_add(short, inner, act="relu")


def resnet50(image: Any, classes: int, layout: str) -> tuple[Any, list[Any]]:
    """Scores of classes, and the outputs of the blocks."""
    x = conv_bn(image, 64, 7, 2, act="relu", layout=layout)
    x = pool2d(x, 3, "max", 2, 1, data_format=layout)
    outputs = []
    for stage, count in enumerate(RESNET50):
        for at in range(count):
            stride = 2 if at == 0 and stage else 1
            x = bottleneck(x, 64 * 2**stage, stride, layout)
            outputs.append(x)
    pooled = pool2d(x, 7, "avg", global_pooling=True, data_format=layout)
    return fc(pooled, classes), outputs


def vgg16(image: Any, classes: int, layout: str) -> tuple[Any, list[Any]]:
    """Scores of classes, and the outputs of the groups."""
    x, outputs = image, []
    for group, count in enumerate((2, 2, 3, 3, 3)):
        for _ in range(count):
            filters = min(64 * 2**group, 512)
            x = conv2d(x, filters, 3, padding=1, act="relu", bias_attr=False, data_format=layout)
        x = pool2d(x, 2, "max", 2, data_format=layout)
        outputs.append(x)
    for _ in range(2):
        x = dropout(fc(x, 4096, act="relu"), 0.5)
    return fc(x, classes), outputs


def attention(  # noqa: PLR0917
    queries: Any, keys: Any, mask: Any, width: int, heads: int, rate: float
) -> Any:
    """Attention of several heads; ``mask`` is added to what softmax sees."""
    parts = [fc(given, width, num_flatten_dims=2) for given in (queries, keys, keys)]
    q, k, v = (
        transpose(reshape(part, [0, 0, heads, width // heads]), [0, 2, 1, 3]) for part in parts
    )
    scores = matmul(q, k, transpose_y=True, alpha=(width // heads) ** -0.5)
    weights = softmax(scores if mask is None else elementwise_add(scores, mask))
    if rate:
        weights = dropout(weights, rate, dropout_implementation="upscale_in_train")
    found = transpose(matmul(weights, v), [0, 2, 1, 3])
    return fc(reshape(found, [0, 0, width]), width, num_flatten_dims=2)


def added(x: Any, inner: Any, rate: float) -> Any:
    """The input plus what was computed of it, normalised."""
    if rate:
        inner = dropout(inner, rate, dropout_implementation="upscale_in_train")
    return layer_norm(elementwise_add(x, inner), begin_norm_axis=2)


def feed_forward(x: Any, width: int, act: str) -> Any:
    """Wider, and back."""
    return fc(fc(x, 4 * width, num_flatten_dims=2, act=act), width, num_flatten_dims=2)


def encoder_layer(x: Any, mask: Any, sizes: tuple[int, int, float], act: str) -> Any:
    """Attention to itself, and two matrices."""
    width, heads, rate = sizes
    x = added(x, attention(x, x, mask, width, heads, rate), rate)
    return added(x, feed_forward(x, width, act), rate)


def decoder_layer(
    x: Any, memory: Any, masks: tuple[Any, Any], sizes: tuple[int, int, float]
) -> Any:
    """Attention to what was written before, to the source, and two matrices."""
    width, heads, rate = sizes
    x = added(x, attention(x, x, masks[0], width, heads, rate), rate)
    x = added(x, attention(x, memory, masks[1], width, heads, rate), rate)
    return added(x, feed_forward(x, width, "relu"), rate)

"""Small operators of ``paddle.fluid.layers``: parts, draws like a batch, places in sentences."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat.dtypes import dtype_of
from fleetx.compat.paddle.fluid.layers.common import named
from fleetx.compat.paddle.fluid.layers.ops import gaussian_random, uniform_random
from fleetx.compat.recorded import sizes_of
from fleetx.static.layers.parameters import size_of


def crop_tensor(x: Any, shape: Any = None, offsets: Any = None, name: str | None = None) -> Any:
    """A part of a tensor: so many numbers of each axis, from an offset on."""
    wanted = sizes_of(list(x.shape) if shape is None else shape)
    starts = sizes_of([0] * x.dim() if offsets is None else offsets)
    found = x
    for at, (size, start) in enumerate(zip(wanted, starts, strict=True)):
        whole = isinstance(size, int) and size == -1
        length = found.shape[at] - start if whole else size
        found = torch.narrow(found, at, start, length)
    return named(found, name)


def crop(x: Any, shape: Any = None, offsets: Any = None, name: str | None = None) -> Any:
    """The same; the sizes may be those of another tensor."""
    given = list(shape.shape) if isinstance(shape, torch.Tensor) else shape
    return crop_tensor(x, given, offsets, name)


def pad_constant_like(x: Any, y: Any, pad_value: float = 0.0, name: str | None = None) -> Any:
    """The second tensor, filled up behind to the sizes of the first."""
    around: list[int] = []
    for at in reversed(range(y.dim())):
        around += [0, x.shape[at] - y.shape[at]]
    return named(F.pad(y, around, value=pad_value), name)


def multiplex(inputs: Sequence[Any], index: Any, name: str | None = None) -> Any:
    """Each row of the input that the index names."""
    stacked = torch.stack(list(inputs))
    chosen = torch.Tensor.to(torch.reshape(index, (-1,)), torch.int64)
    shape = (1, -1, *[1] * (stacked.dim() - 2))
    places = torch.reshape(chosen, shape).expand(1, *stacked.shape[1:])
    return named(torch.gather(stacked, 0, places)[0], name)


def scatter_nd(index: Any, updates: Any, shape: Any, name: str | None = None) -> Any:
    """Zeros, with updates added at places."""
    sizes = [int(size) for size in sizes_of(shape)]
    empty = torch.Tensor.new_zeros(updates, sizes)
    places = tuple(torch.unbind(torch.Tensor.to(index, torch.int64), -1))
    return named(torch.index_put(empty, places, updates, accumulate=True), name)


def _sized_like(input: Any, shape: Sequence[int], source: int, target: int) -> list[Any]:
    sizes: list[Any] = [int(size) for size in shape]
    sizes[target] = input.shape[source]
    return sizes


def uniform_random_batch_size_like(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    shape: Sequence[int],
    dtype: Any = "float32",
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
) -> Any:
    """Numbers drawn evenly, as many rows as an input has."""
    sizes = _sized_like(input, shape, input_dim_idx, output_dim_idx)
    return uniform_random(sizes, dtype, min, max, seed)


def gaussian_random_batch_size_like(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    shape: Sequence[int],
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Any = "float32",
) -> Any:
    """Numbers drawn from a normal distribution, as many rows as an input has."""
    sizes = _sized_like(input, shape, input_dim_idx, output_dim_idx)
    return gaussian_random(sizes, mean, std, seed, dtype)


def sampling_id(
    x: Any, min: float = 0.0, max: float = 1.0, seed: int = 0, dtype: Any = "float32"
) -> Any:
    """The number of a column for each row, drawn by its probabilities."""
    drawn = torch.rand_like(x[:, :1]) * (max - min) + min
    below = torch.Tensor.to(torch.cumsum(x, 1) < drawn, torch.int64)
    last = size_of(x, 1) - 1
    return torch.Tensor.to(torch.clamp(torch.sum(below, 1), max=last), dtype_of(dtype))


def add_position_encoding(input: Any, alpha: float, beta: float, name: str | None = None) -> Any:
    """Sines and cosines of places added to [batch, steps, width]."""
    width = size_of(input, 2)
    half = width // 2
    places = torch.cumsum(torch.ones_like(input[0, :, :1]), 0) - 1
    apart = [math.pow(10000.0, at / (half - 1)) if half > 1 else 10000.0 for at in range(half)]
    angles = places / torch.Tensor.new_tensor(input.detach(), apart)
    found = input * alpha + torch.cat([torch.sin(angles), torch.cos(angles)], 1) * beta
    return named(found, name)


def triu(input: Any, diagonal: int = 0, name: str | None = None) -> Any:
    """What lies on a diagonal and above it."""
    return named(torch.triu(input, diagonal), name)


def mean_iou(input: Any, label: Any, num_classes: int) -> tuple[Any, Any, Any]:
    """The mean overlap of predicted and true classes; wrong and right numbers by class."""
    with torch.no_grad():
        classes = torch.cumsum(torch.ones_like(torch.reshape(label, (-1,))[:1]), 0) - 1
        classes = torch.cumsum(torch.Tensor.new_ones(classes, num_classes), 0) - 1
        hits = [torch.eq(torch.reshape(t, (-1, 1)), classes) for t in (input, label)]
        both = torch.sum(torch.Tensor.to(hits[0] & hits[1], torch.int64), 0)
        either = torch.sum(torch.Tensor.to(hits[0] | hits[1], torch.int64), 0)
        seen = torch.Tensor.to(either > 0, torch.float32)
        share = both / torch.clamp_min(either, 1)
        mean = torch.sum(share) / torch.clamp_min(torch.sum(seen), 1)
    return mean, torch.Tensor.to(either - both, torch.int32), torch.Tensor.to(both, torch.int32)

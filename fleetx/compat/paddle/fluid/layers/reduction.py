"""Sums, means and products of matrices of ``paddle.fluid.layers``."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat.paddle.fluid.layers.common import activated, axes_of, named, scalar
from fleetx.compat.recorded import agreed


def _reduction(func: Callable[..., Any], doc: str) -> Callable[..., Any]:
    def call(input: Any, dim: Any = None, keep_dim: bool = False, name: str | None = None) -> Any:
        axes = axes_of(dim)
        axes = tuple(range(input.dim())) if axes is None else axes
        return named(scalar(func(input, axes, keep_dim)), name)

    call.__doc__ = doc
    return call


def _product(x: Any, axes: Any, keep: bool) -> Any:
    for axis in sorted((axes,) if isinstance(axes, int) else axes, key=lambda a: -(a % x.dim())):
        x = torch.prod(x, axis, keepdim=keep)
    return x


def _sum(x: Any, axes: Any, keep: bool) -> Any:
    return torch.sum(x, axes, keepdim=keep, dtype=None if x.dtype != torch.int32 else x.dtype)


reduce_sum = _reduction(_sum, "The sum over dimensions.")
reduce_mean = _reduction(lambda x, a, k: torch.mean(x, a, keepdim=k), "The mean over dimensions.")
reduce_max = _reduction(lambda x, a, k: torch.amax(x, a, keepdim=k), "The largest number.")
reduce_min = _reduction(lambda x, a, k: torch.amin(x, a, keepdim=k), "The smallest number.")
reduce_prod = _reduction(_product, "The product over dimensions.")
reduce_all = _reduction(lambda x, a, k: torch.all(x, a, keepdim=k), "Whether all are true.")
reduce_any = _reduction(lambda x, a, k: torch.any(x, a, keepdim=k), "Whether one is true.")


def mean(x: Any, name: str | None = None) -> Any:
    """The mean of all numbers, of shape [1]."""
    return named(torch.reshape(torch.mean(x), (1,)), name)


def sum(x: Any) -> Any:
    """The sum of several tensors."""
    if not isinstance(x, (list, tuple)):
        return x
    found = x[0]
    for entry in x[1:]:
        found = found + agreed(found, entry)
    return found


def scale(  # noqa: PLR0917
    x: Any,
    scale: Any = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
    name: str | None = None,
) -> Any:
    """X times a number plus a number, or the other way round."""
    found = x * scale + bias if bias_after_scale else (x + bias) * scale
    found = found if isinstance(scale, torch.Tensor) else torch.Tensor.to(found, x.dtype)
    return named(activated(found, act), name)


def pow(x: Any, factor: Any = 1.0, name: str | None = None) -> Any:
    """X to a power."""
    return named(torch.pow(x, factor), name)


def clip(x: Any, min: float, max: float, name: str | None = None) -> Any:
    """Between two numbers."""
    return named(torch.clamp(x, min, max), name)


def clip_by_norm(x: Any, max_norm: float, name: str | None = None) -> Any:
    """Shortened to a length if it is longer."""
    norm = torch.sqrt(torch.sum(torch.square(x)))
    return named(x * torch.clamp(max_norm / torch.clamp_min(norm, 1e-12), max=1.0), name)


def matmul(  # noqa: PLR0917
    x: Any,
    y: Any,
    transpose_x: bool = False,
    transpose_y: bool = False,
    alpha: float = 1.0,
    name: str | None = None,
) -> Any:
    """The product of matrices, or of stacks of them."""
    x = torch.transpose(x, -1, -2) if transpose_x and x.dim() > 1 else x
    y = torch.transpose(y, -1, -2) if transpose_y and y.dim() > 1 else y
    found = torch.matmul(x, agreed(x, y, behind=2))
    return named(scalar(found if alpha == 1.0 else found * alpha), name)


def mul(
    x: Any,
    y: Any,
    x_num_col_dims: int = 1,
    y_num_col_dims: int = 1,
    name: str | None = None,
) -> Any:
    """The product of matrices into which leading and other dimensions are folded."""
    rows, columns = list(x.shape)[:x_num_col_dims], list(y.shape)[y_num_col_dims:]
    left = torch.flatten(x, x_num_col_dims) if x.dim() > x_num_col_dims + 1 else x
    inner = math.prod(list(y.shape)[:y_num_col_dims])
    right = torch.reshape(y, (inner, -1)) if y.dim() > 2 or y_num_col_dims > 1 else y
    found = torch.matmul(left, right)
    return named(torch.reshape(found, (*rows, *columns)) if len(columns) > 1 else found, name)


def cos_sim(X: Any, Y: Any) -> Any:
    """The cosine of the angle between rows, [N, 1]."""
    Y = agreed(X, Y)
    lengths = [torch.sqrt(torch.sum(torch.square(v), -1, keepdim=True)) for v in (X, Y)]
    return torch.sum(X * Y, -1, keepdim=True) / (lengths[0] * lengths[1])


def l2_normalize(x: Any, axis: int, epsilon: float = 1e-12, name: str | None = None) -> Any:
    """Divided by the length along a dimension."""
    axis = 0 if x.dim() == 1 else axis
    squares = torch.sum(torch.square(x), axis, keepdim=True)
    return named(x / torch.sqrt(torch.clamp_min(squares, epsilon)), name)


def topk(input: Any, k: Any, name: str | None = None) -> Any:
    """The largest numbers along the last dimension, and where they are."""
    count = int(k) if not isinstance(k, torch.Tensor) else int(k.item())
    values, indices = torch.topk(input, count, -1)
    return values, indices


def label_smooth(
    label: Any,
    prior_dist: Any = None,
    epsilon: float = 0.1,
    dtype: Any = "float32",
    name: str | None = None,
) -> Any:
    """Shares that leave a little for every class."""
    classes = label.shape[-1]
    rest = epsilon / classes if prior_dist is None else epsilon * prior_dist
    return named((1 - epsilon) * label + rest, name)


def dot(x: Any, y: Any) -> Any:
    """Sums of products along the last dimension."""
    return torch.sum(x * y, -1, keepdim=True)


def bmm(x: Any, y: Any, name: str | None = None) -> Any:
    """The product of two stacks of matrices."""
    return named(torch.bmm(x, y), name)


def cosine_similarity(x: Any, y: Any, axis: int = 1, eps: float = 1e-8) -> Any:
    """The cosine of the angle along a dimension."""
    return F.cosine_similarity(x, y, axis, eps)

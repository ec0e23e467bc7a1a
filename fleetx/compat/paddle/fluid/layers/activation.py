"""Activations of ``paddle.fluid.layers`` that have options."""

from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat import unique_names
from fleetx.compat.fills import Number
from fleetx.compat.paddle.fluid.layers.common import (
    hard_sigmoid as _hard_sigmoid,
)
from fleetx.compat.paddle.fluid.layers.common import hard_swish as _hard_swish
from fleetx.compat.paddle.fluid.layers.common import named, tuned
from fleetx.compat.paddle.fluid.layers.common import swish as _swish
from fleetx.compat.parameters import create
from fleetx.compat.recorded import settle


def relu(x: Any, name: str | None = None) -> Any:
    """Zero below zero."""
    return named(torch.relu(x), name)


def relu6(x: Any, threshold: float = 6.0, name: str | None = None) -> Any:
    """Between zero and the threshold."""
    return named(torch.clamp(x, 0.0, threshold), name)


def leaky_relu(x: Any, alpha: float = 0.02, name: str | None = None) -> Any:
    """ReLU with a slope below zero."""
    return named(F.leaky_relu(x, alpha), name)


def elu(x: Any, alpha: float = 1.0, name: str | None = None) -> Any:
    """Exponential below zero."""
    return named(F.elu(x, alpha), name)


def selu(
    x: Any, scale: float | None = None, alpha: float | None = None, name: str | None = None
) -> Any:
    """ELU that keeps mean and variance."""
    by = 1.0507009873554805 if scale is None else scale
    below = 1.6732632423543772 if alpha is None else alpha
    return named(by * F.elu(x, below), name)


def swish(x: Any, beta: float = 1.0, name: str | None = None) -> Any:
    """X times the sigmoid of beta x."""
    return named(_swish(x, beta), name)


def mish(x: Any, threshold: float = 20, name: str | None = None) -> Any:
    """X times the tanh of its softplus."""
    return named(F.mish(x), name)


def hard_sigmoid(x: Any, slope: float = 0.2, offset: float = 0.5, name: str | None = None) -> Any:
    """A line between 0 and 1."""
    return named(_hard_sigmoid(x, slope, offset), name)


def hard_swish(
    x: Any,
    threshold: float = 6.0,
    scale: float = 6.0,
    offset: float = 3.0,
    name: str | None = None,
) -> Any:
    """X times a line between 0 and 1."""
    return named(_hard_swish(x, threshold, scale, offset), name)


def brelu(x: Any, t_min: float = 0.0, t_max: float = 24.0, name: str | None = None) -> Any:
    """Between two numbers."""
    return named(torch.clamp(x, t_min, t_max), name)


def soft_relu(x: Any, threshold: float = 40.0, name: str | None = None) -> Any:
    """The logarithm of 1 + e to the power of x, within limits."""
    return named(torch.log1p(torch.exp(torch.clamp(x, -threshold, threshold))), name)


def stanh(x: Any, scale_a: float = 0.67, scale_b: float = 1.7159, name: str | None = None) -> Any:
    """A scaled hyperbolic tangent."""
    return named(scale_b * torch.tanh(scale_a * x), name)


def softmax(input: Any, use_cudnn: bool = False, name: str | None = None, axis: int = -1) -> Any:
    """Shares that add up to one."""
    tuned(use_cudnn=use_cudnn)
    return named(F.softmax(input, axis), name)


def log_softmax(input: Any, dtype: Any = None, axis: int = -1, name: str | None = None) -> Any:
    """The logarithm of the softmax."""
    return named(F.log_softmax(input, axis), name)


def maxout(x: Any, groups: int, name: str | None = None, axis: int = 1) -> Any:
    """The largest of every group of channels."""
    axis = axis % x.dim()
    sizes = list(x.shape)
    split = [*sizes[:axis], sizes[axis] // groups, groups, *sizes[axis + 1 :]]
    return named(torch.amax(torch.reshape(x, split), axis + 1), name)


def prelu(
    x: Any,
    mode: str,
    param_attr: Any = None,
    name: str | None = None,
    data_format: str = "NCHW",
) -> Any:
    """ReLU whose slope below zero is learnt: of all, of a channel or of an element."""
    settle(x)
    if mode not in {"all", "channel", "element"}:
        raise ValueError(f"prelu(mode={mode!r}) is none of 'all', 'channel' and 'element'.")
    at = 1 if data_format == "NCHW" else x.dim() - 1
    shapes = {"all": [1], "channel": [1, x.shape[at], 1, 1], "element": [1, *x.shape[1:]]}
    layer = name or unique_names.generate("prelu")
    given = create(layer, param_attr, shapes[mode], x.dtype, default=Number(0.25))
    slope = given
    if mode == "channel":
        around = [1] * x.dim()
        around[at] = -1
        slope = torch.reshape(given, around)
    return named(torch.relu(x) - slope * torch.relu(-x), name)

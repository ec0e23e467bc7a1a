"""``paddle.nn.functional.activation``: functions of each number, and softmax."""

from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat.dtypes import dtype_of
from fleetx.compat.tensors import op


@op
def relu(x: Any, name: str | None = None) -> Any:
    """0 below 0."""
    return torch.relu(x)


relu_ = relu


@op
def relu6(x: Any, name: str | None = None) -> Any:
    """Between 0 and 6."""
    return F.relu6(x)


@op
def gelu(x: Any, approximate: bool = False, name: str | None = None) -> Any:
    """Times the normal distribution's share below it, by erf or by tanh."""
    return F.gelu(x, approximate="tanh" if approximate else "none")


@op
def sigmoid(x: Any, name: str | None = None) -> Any:
    """Between 0 and 1."""
    return torch.sigmoid(x)


@op
def tanh(x: Any, name: str | None = None) -> Any:
    """Between -1 and 1."""
    return torch.tanh(x)


tanh_ = tanh


@op
def softmax(x: Any, axis: int = -1, dtype: Any = None, name: str | None = None) -> Any:
    """Probabilities along an axis."""
    return torch.softmax(x if dtype is None else torch.Tensor.to(x, dtype_of(dtype)), axis)


softmax_ = softmax


@op
def log_softmax(x: Any, axis: int = -1, dtype: Any = None, name: str | None = None) -> Any:
    """Logarithms of probabilities along an axis."""
    return torch.log_softmax(x if dtype is None else torch.Tensor.to(x, dtype_of(dtype)), axis)


@op
def leaky_relu(x: Any, negative_slope: float = 0.01, name: str | None = None) -> Any:
    """Flatter below 0."""
    return F.leaky_relu(x, negative_slope)


@op
def elu(x: Any, alpha: float = 1.0, name: str | None = None) -> Any:
    """An exponential below 0."""
    return F.elu(x, alpha)


@op
def selu(
    x: Any,
    scale: float = 1.0507009873554805,
    alpha: float = 1.6732632423543772,
    name: str | None = None,
) -> Any:
    """A scaled exponential below 0."""
    return scale * (torch.clamp(x, min=0) + torch.clamp(alpha * torch.expm1(x), max=0))


@op
def silu(x: Any, name: str | None = None) -> Any:
    """Times its sigmoid."""
    return F.silu(x)


swish = silu


@op
def mish(x: Any, name: str | None = None) -> Any:
    """Times tanh of softplus."""
    return F.mish(x)


@op
def hardswish(x: Any, name: str | None = None) -> Any:
    """Times a straight sigmoid."""
    return F.hardswish(x)


@op
def hardsigmoid(x: Any, slope: float = 1 / 6, offset: float = 0.5, name: str | None = None) -> Any:
    """A straight line between 0 and 1."""
    return torch.clamp(x * slope + offset, 0.0, 1.0)


@op
def hardtanh(x: Any, min: float = -1.0, max: float = 1.0, name: str | None = None) -> Any:
    """Within two bounds."""
    return torch.clamp(x, min, max)


@op
def softplus(x: Any, beta: float = 1, threshold: float = 20, name: str | None = None) -> Any:
    """A smooth relu."""
    return F.softplus(x, beta, threshold)


@op
def softsign(x: Any, name: str | None = None) -> Any:
    """Over one and its size."""
    return F.softsign(x)


@op
def log_sigmoid(x: Any, name: str | None = None) -> Any:
    """The logarithm of the sigmoid."""
    return F.logsigmoid(x)


@op
def prelu(x: Any, weight: Any, data_format: str = "NCHW", name: str | None = None) -> Any:
    """A learnt slope below 0, one or one for each channel."""
    return F.prelu(x, weight)


@op
def glu(x: Any, axis: int = -1, name: str | None = None) -> Any:
    """One half times the sigmoid of the other."""
    return F.glu(x, axis)


ACTIVATIONS = {
    name: globals()[name]
    for name in (
        *("relu", "relu6", "gelu", "sigmoid", "tanh", "softmax", "log_softmax", "leaky_relu"),
        *("elu", "selu", "silu", "swish", "mish", "hardswish", "hardsigmoid", "softplus"),
        *("softsign", "log_sigmoid"),
    )
}


def activated(x: Any, act: str | None) -> Any:
    """Behind an activation by its name, as ``act=`` gives it."""
    if act is None:
        return x
    if act not in ACTIVATIONS:
        raise ValueError(f"act={act!r} is no activation here; one of {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[act](x)


@op
def celu(x: Any, alpha: float = 1.0, name: str | None = None) -> Any:
    """An exponential below 0, smooth at 0."""
    return F.celu(x, alpha)


@op
def hardshrink(x: Any, threshold: float = 0.5, name: str | None = None) -> Any:
    """0 where it is small."""
    return F.hardshrink(x, threshold)


@op
def softshrink(x: Any, threshold: float = 0.5, name: str | None = None) -> Any:
    """Nearer to 0, and 0 where it is small."""
    return F.softshrink(x, threshold)


@op
def tanhshrink(x: Any, name: str | None = None) -> Any:
    """Less its tanh."""
    return F.tanhshrink(x)


@op
def thresholded_relu(x: Any, threshold: float = 1.0, name: str | None = None) -> Any:
    """0 below a threshold."""
    return torch.where(x > threshold, x, torch.zeros_like(x))


@op
def maxout(x: Any, groups: int, axis: int = 1, name: str | None = None) -> Any:
    """The largest of each group of channels."""
    at = axis % x.dim()
    sizes = list(x.size())
    sizes[at : at + 1] = [sizes[at] // groups, groups]
    return torch.amax(torch.reshape(x, sizes), at + 1)


@op
def rrelu(
    x: Any,
    lower: float = 1.0 / 8.0,
    upper: float = 1.0 / 3.0,
    training: bool = True,
    name: str | None = None,
) -> Any:
    """Flatter below 0, by a slope that is drawn."""
    return F.rrelu(x, lower, upper, training)


@op
def gumbel_softmax(
    x: Any, temperature: float = 1.0, hard: bool = False, axis: int = -1, name: str | None = None
) -> Any:
    """A choice that is drawn, through which gradients flow."""
    return F.gumbel_softmax(x, temperature, hard, dim=axis)


elu_, leaky_relu_, hardtanh_, thresholded_relu_ = elu, leaky_relu, hardtanh, thresholded_relu

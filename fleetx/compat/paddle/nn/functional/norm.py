"""``paddle.nn.functional.norm``: norms."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat.paddle.nn.functional.common import normalize, several
from fleetx.compat.paddle.nn.functional.conv import channels_back, channels_first
from fleetx.compat.tensors import op

__all__ = [
    "batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "local_response_norm",
    "normalize",
]


@op
def layer_norm(
    x: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    epsilon: float = 1e-05,
    name: str | None = None,
) -> Any:
    """Mean 0 and variance 1 over the last axes."""
    sizes = several(normalized_shape, 1)

    def shaped(value: Any) -> Any:
        return None if value is None else torch.reshape(value, sizes)

    return F.layer_norm(x, sizes, shaped(weight), shaped(bias), epsilon)


@op
def batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-05,
    data_format: str = "NCHW",
    use_global_stats: bool | None = None,
    name: str | None = None,
) -> Any:
    """Mean 0 and variance 1 over a batch; ``momentum`` is the share of the old."""
    by_batch = training and not use_global_stats
    x = channels_first(x, data_format) if x.dim() > 2 else x
    made = F.batch_norm(x, running_mean, running_var, weight, bias, by_batch, 1 - momentum, epsilon)
    return channels_back(made, data_format) if x.dim() > 2 else made


@op
def instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.9,
    eps: float = 1e-05,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Any:
    """Mean 0 and variance 1 over the space of each channel of each sample."""
    return F.instance_norm(x, weight=weight, bias=bias, eps=eps)


@op
def group_norm(
    x: Any,
    num_groups: int,
    epsilon: float = 1e-05,
    weight: Any = None,
    bias: Any = None,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Any:
    """Mean 0 and variance 1 over groups of channels."""
    made = F.group_norm(channels_first(x, data_format), num_groups, weight, bias, epsilon)
    return channels_back(made, data_format)


@op
def local_response_norm(
    x: Any,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Any:
    """Divided by the numbers of neighbouring channels."""
    return F.local_response_norm(x, size, alpha, beta, k)

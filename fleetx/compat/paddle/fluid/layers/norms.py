"""Layers of ``paddle.fluid.layers`` that normalise."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from typing_extensions import override

from fleetx.compat import unique_names
from fleetx.compat.fills import Number
from fleetx.compat.paddle.fluid.layers.common import activated, named
from fleetx.compat.paddle.fluid.layers.images import first, last
from fleetx.compat.parameters import ParamAttr, create
from fleetx.compat.recorded import settle
from fleetx.record.variable import Variable
from fleetx.static.layers.parameters import size_of
from fleetx.torch_internals import BatchNormBase

ONE, ZERO = Number(1.0), Number(0.0)


class BatchNorm(BatchNormBase):
    """A module over parameters that have Paddle's names, statistics among them."""

    one_operator = True

    def __init__(self, parameters: dict[str, Any], channels: int, eps: float, keep: float) -> None:
        super().__init__(channels, eps, 1 - keep)
        del self.running_mean, self.running_var
        self.num_batches_tracked = None
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)

    @override
    def reset_parameters(self) -> None:
        """Nothing: parameters get their first values under their own names."""

    @override
    def _check_input_dim(self, input: Any) -> None:
        return None


def _stored(parameter: Any) -> Any:
    """The parameter itself, of one that a program reads."""
    if isinstance(parameter, Variable):
        return parameter.program.parameter(parameter.node)
    return parameter


def batch_norm(  # noqa: PLR0917
    input: Any,
    act: Any = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
) -> Any:
    """Batch normalisation; ``momentum`` is the share of the old statistics that stays."""
    settle(input)
    x = first(input, data_layout)
    channels, layer = size_of(x, 1), name or unique_names.generate("batch_norm")
    kind = torch.float32 if x.dtype == torch.float16 else x.dtype
    shown = [
        ("weight", param_attr, ONE, False),
        ("bias", bias_attr, ZERO, True),
        ("running_mean", ParamAttr(name=moving_mean_name, trainable=False), ZERO, False),
        ("running_var", ParamAttr(name=moving_variance_name, trainable=False), ONE, False),
    ]
    found = {
        at: _stored(create(layer, attr, [channels], kind, default=fill, is_bias=is_bias))
        for at, attr, fill, is_bias in shown
    }
    module = BatchNorm(found, channels, epsilon, momentum)
    module.train(not (is_test or use_global_stats))
    steps = 3 + (act is not None)
    return named(activated(last(module(x), data_layout), act), name, steps)


def layer_norm(  # noqa: PLR0917
    input: Any,
    scale: bool = True,
    shift: bool = True,
    begin_norm_axis: int = 1,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Any = None,
    name: str | None = None,
) -> Any:
    """Normalisation over all dimensions from ``begin_norm_axis`` on."""
    settle(input)
    layer = name or unique_names.generate("layer_norm")
    shape = [size_of(input, dim) for dim in range(begin_norm_axis, input.dim())]
    width, kind = [math.prod(shape)], input.dtype
    weight = create(layer, param_attr, width, kind, default=ONE) if scale else None
    bias = create(layer, bias_attr, width, kind, default=ZERO, is_bias=True) if shift else None
    spread = [None if p is None else torch.reshape(p, shape) for p in (weight, bias)]
    found = F.layer_norm(input, shape, spread[0], spread[1], epsilon)
    return named(activated(found, act), name, 3)


def group_norm(  # noqa: PLR0917
    input: Any,
    groups: int,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Any = None,
    data_layout: str = "NCHW",
    name: str | None = None,
) -> Any:
    """Normalisation over groups of channels."""
    settle(input)
    x = first(input, data_layout)
    layer, channels = name or unique_names.generate("group_norm"), [size_of(x, 1)]
    weight = create(layer, param_attr, channels, x.dtype, default=ONE)
    bias = create(layer, bias_attr, channels, x.dtype, default=ZERO, is_bias=True)
    found = F.group_norm(x, groups, weight, bias, epsilon)
    return named(activated(last(found, data_layout), act), name)


def instance_norm(
    input: Any,
    epsilon: float = 1e-5,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> Any:
    """Normalisation of every channel of every sample."""
    settle(input)
    layer, channels = name or unique_names.generate("instance_norm"), [size_of(input, 1)]
    weight = create(layer, param_attr, channels, input.dtype, default=ONE)
    bias = create(layer, bias_attr, channels, input.dtype, default=ZERO, is_bias=True)
    return named(F.instance_norm(input, None, None, weight, bias, True, 0.0, epsilon), name)


__all__ = ["BatchNorm", "batch_norm", "group_norm", "instance_norm", "layer_norm", "nn"]

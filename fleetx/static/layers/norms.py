"""Layers that normalise; ``param_attr=False`` and ``bias_attr=False`` leave scale and shift out."""

from torch import Tensor, nn

from fleetx.record.error import ProgramError
from fleetx.record.variable import Variable
from fleetx.static.layers.parameters import (
    Activation,
    Attr,
    activated,
    applied,
    layer,
    one_of,
    size_of,
)


def batch_norm(
    input: Tensor,
    act: Activation = None,
    *,
    activation: Activation = None,
    momentum: float = 0.9,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    weight_attr: Attr = None,
    bias_attr: Attr = None,
    is_test: bool = False,
    name: str | None = None,
) -> Variable:
    """Batch normalisation; ``momentum`` is the share of the old statistics that stays."""
    kinds: dict[int, type[nn.Module]] = {
        2: nn.BatchNorm1d,
        3: nn.BatchNorm1d,
        4: nn.BatchNorm2d,
        5: nn.BatchNorm3d,
    }
    if input.dim() not in kinds:
        raise ProgramError(
            f"batch_norm takes 2 to 5 dimensions, but the input has {input.dim()}; bring the "
            "channels to dimension 1."
        )
    channels, kind = size_of(input, 1), kinds[input.dim()]
    module = layer(
        "batch_norm",
        lambda: kind(channels, eps=epsilon, momentum=1 - momentum),
        name=name,
        weight=one_of(param_attr=param_attr, weight_attr=weight_attr),
        bias=bias_attr,
        needs_weight=False,
    )
    module.train(not is_test)
    return activated(module(input), one_of(act=act, activation=activation))


def layer_norm(
    input: Tensor,
    begin_norm_axis: int = 1,
    *,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    weight_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation = None,
    activation: Activation = None,
    name: str | None = None,
) -> Variable:
    """Normalisation over all dimensions from ``begin_norm_axis`` on."""
    shape = [size_of(input, dim) for dim in range(begin_norm_axis, input.dim())]
    return applied(
        "layer_norm",
        lambda: nn.LayerNorm(shape, eps=epsilon),
        input,
        name=name,
        weight=one_of(param_attr=param_attr, weight_attr=weight_attr),
        bias=bias_attr,
        needs_weight=False,
        act=one_of(act=act, activation=activation),
    )


def group_norm(
    input: Tensor,
    groups: int,
    *,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    weight_attr: Attr = None,
    bias_attr: Attr = None,
    act: Activation = None,
    activation: Activation = None,
    name: str | None = None,
) -> Variable:
    """Normalisation over groups of channels."""
    channels = size_of(input, 1)
    return applied(
        "group_norm",
        lambda: nn.GroupNorm(groups, channels, eps=epsilon),
        input,
        name=name,
        weight=one_of(param_attr=param_attr, weight_attr=weight_attr),
        bias=bias_attr,
        needs_weight=False,
        act=one_of(act=act, activation=activation),
    )


def instance_norm(
    input: Tensor,
    *,
    epsilon: float = 1e-5,
    param_attr: Attr = None,
    weight_attr: Attr = None,
    bias_attr: Attr = None,
    name: str | None = None,
) -> Variable:
    """Normalisation of every channel of every sample of [N, C, H, W]."""
    channels = size_of(input, 1)
    return applied(
        "instance_norm",
        lambda: nn.InstanceNorm2d(channels, eps=epsilon, affine=True),
        input,
        name=name,
        weight=one_of(param_attr=param_attr, weight_attr=weight_attr),
        bias=bias_attr,
        needs_weight=False,
    )

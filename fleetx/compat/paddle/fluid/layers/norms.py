"""Layers of ``paddle.fluid.layers`` that normalise."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from typing_extensions import override

from fleetx.compat import unique_names
from fleetx.compat.fills import Bell, Number
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

    @override
    def __call__(self, x: Any) -> Any:
        """The norm. Its forward stays torch's own, which strategies may replace."""
        return with_biased_variance(self, super().__call__, x)


def with_biased_variance(module: Any, call: Callable[[Any], Any], x: Any) -> Any:
    """A call of batch norm whose running variance takes that of the batch as it is.

    torch divides by one sample less, and so does Paddle on cards; its CPU does not. A forward that
    a strategy put there counts over workers, as Paddle does on cards alone.
    """
    kept = module.running_var
    local = module.training and "forward" not in vars(module)
    if isinstance(x, Variable) or not local or kept is None or x.device.type != "cpu":
        return call(x)
    before = kept.detach().clone()
    made = call(x)
    count = x.numel() // x.size(1)
    with torch.no_grad():
        added = kept - before * (1.0 - module.momentum)
        kept.data.sub_(added / count)  # by data: backward notes the version, but reads nothing
    return made


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


class DataNorm(nn.Module):
    """Normalises by sums over everything that was seen, which Paddle's cards keep so."""

    one_operator = True
    batch_size: nn.Parameter
    batch_sum: nn.Parameter
    batch_square_sum: nn.Parameter

    def __init__(self, parameters: dict[str, Any], epsilon: float, keep: float) -> None:
        super().__init__()
        self.epsilon, self.keep = epsilon, keep
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)

    @override
    def forward(self, x: Any) -> Any:
        """Mean 0 and deviation 1, by what was seen before this batch."""
        mean = self.batch_sum / self.batch_size
        made = (x - mean) * torch.sqrt(self.batch_size / self.batch_square_sum)
        if self.training:
            with torch.no_grad():
                rows = float(x.size(0)) if not isinstance(x.size(0), torch.SymInt) else 1.0
                squares = torch.sum((x - mean) ** 2, 0) + rows * self.epsilon
                for kept, added in (
                    (self.batch_size, torch.full_like(self.batch_size, rows)),
                    (self.batch_sum, torch.sum(x, 0)),
                    (self.batch_square_sum, squares),
                ):
                    kept.data.mul_(self.keep).add_(added)
        return made


def data_norm(  # noqa: PLR0917
    input: Any,
    act: str | None = None,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    slot_dim: int = -1,
    sync_stats: bool = False,
    summary_decay_rate: float = 0.9999999,
    enable_scale_and_shift: bool = False,
) -> Any:
    """[N, C] by the mean and deviation of all that was seen; ``param_attr`` says how they begin."""
    if slot_dim > 0 or sync_stats:
        raise ValueError(
            f"data_norm(slot_dim={slot_dim}, sync_stats={sync_stats}): each worker counts what it "
            "has seen, all of it; leave both out."
        )
    settle(input)
    given = param_attr if isinstance(param_attr, dict) else {}
    layer, size = name or unique_names.generate("data_norm"), [size_of(input, 1)]
    starts = {
        "batch_size": given.get("batch_size", 1e4),
        "batch_sum": given.get("batch_sum", given.get("batch_sum_default", 0.0)),
        "batch_square_sum": given.get("batch_square_sum", given.get("batch_square", 1e4)),
    }
    parameters = {}
    for at, start in starts.items():
        attr = ParamAttr(name=f"{layer}.{at}", trainable=False)
        fill = Number(float(start))
        parameters[at] = _stored(create(layer, attr, size, input.dtype, default=fill))
    made = DataNorm(parameters, epsilon, summary_decay_rate)(input)
    if enable_scale_and_shift:
        scale, shift = ParamAttr(name=f"{layer}.scale_w"), ParamAttr(name=f"{layer}.bias")
        made = made * create(layer, scale, size, input.dtype, default=ONE)
        made = made + create(layer, shift, size, input.dtype, default=ZERO, is_bias=True)
    return named(activated(made, act), name)


def inplace_abn(  # noqa: PLR0917
    input: Any,
    act: str | None = None,
    is_test: bool = False,
    momentum: float = 0.9,
    epsilon: float = 1e-05,
    param_attr: Any = None,
    bias_attr: Any = None,
    data_layout: str = "NCHW",
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    use_global_stats: bool = False,
    act_alpha: float = 1.0,
) -> Any:
    """Batch normalisation behind which an activation follows; Paddle saves memory so."""
    if act not in {None, "identity", "leaky_relu", "elu"}:
        raise ValueError(f"inplace_abn(act={act!r}) is none of 'identity', 'leaky_relu', 'elu'.")
    found = batch_norm(
        input,
        None,
        is_test,
        momentum,
        epsilon,
        param_attr,
        bias_attr,
        data_layout,
        name=name,
        moving_mean_name=moving_mean_name,
        moving_variance_name=moving_variance_name,
        use_global_stats=use_global_stats,
    )
    if act == "leaky_relu":
        return F.leaky_relu(found, act_alpha)
    return F.elu(found, act_alpha) if act == "elu" else found


class SpectralNorm(nn.Module):
    """A weight by its largest singular value, which steps of a power iteration follow."""

    one_operator = True
    left: nn.Parameter
    right: nn.Parameter

    def __init__(self, left: Any, right: Any, dim: int, steps: int, epsilon: float) -> None:
        super().__init__()
        self.dim, self.steps, self.epsilon = dim, steps, epsilon
        self.register_parameter("left", left)
        self.register_parameter("right", right)

    @override
    def forward(self, weight: Any) -> Any:
        """The weight, divided; its vectors are constants of the gradient."""
        matrix = torch.movedim(weight, self.dim, 0).flatten(1)
        left, right = self.left.detach(), self.right.detach()
        with torch.no_grad():
            for _ in range(self.steps):
                right = F.normalize(torch.mv(matrix.t(), left), dim=0, eps=self.epsilon)
                left = F.normalize(torch.mv(matrix, right), dim=0, eps=self.epsilon)
            if self.training:
                self.left.data.copy_(left)
                self.right.data.copy_(right)
        return weight / torch.dot(left.clone(), torch.mv(matrix, right.clone()))


def spectral_norm(
    weight: Any, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, name: str | None = None
) -> Any:
    """A weight by its largest singular value."""
    settle(weight)
    layer = name or unique_names.generate("spectral_norm")
    high = size_of(weight, dim)
    wide = math.prod(size_of(weight, at) for at in range(weight.dim())) // high
    drawn, fixed = Bell(0.0, 1.0), ParamAttr(trainable=False)
    left = _stored(create(layer, fixed, [high], weight.dtype, default=drawn))
    right = _stored(create(layer, fixed, [wide], weight.dtype, default=drawn))
    return named(SpectralNorm(left, right, dim, power_iters, eps)(weight), name)

"""More layers of ``paddle.fluid.dygraph`` with the arguments of Paddle 1."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

import math
from typing import Any

from typing_extensions import override

from fleetx.compat.fills import Bell
from fleetx.compat.paddle.fluid.layers.common import ACTIVATIONS
from fleetx.compat.paddle.fluid.layers.recurrent import gru_step
from fleetx.compat.paddle.nn.functional import common
from fleetx.compat.paddle.nn.functional.activation import activated
from fleetx.compat.paddle.nn.functional.conv import conv3d
from fleetx.compat.paddle.nn.layer.common import Bilinear
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.nn.layer.norm import InstanceNorm2D


class BackwardStrategy:
    """How gradients are added up; torch's order does not change from run to run."""

    sort_sum_gradient = False


class Conv3D(Layer):
    """A convolution over three axes."""

    def __init__(
        self,
        num_channels: int,
        num_filters: int,
        filter_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int | None = None,
        param_attr: Any = None,
        bias_attr: Any = None,
        use_cudnn: bool = True,
        act: str | None = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(dtype=dtype)
        kernel, groups = common.several(filter_size, 3), groups or 1
        self._options, self._act = (stride, padding, dilation, groups), act
        self.weight = self.create_parameter(
            [num_filters, num_channels // groups, *kernel],
            param_attr,
            default_initializer=Bell(0.0, math.sqrt(2.0 / (math.prod(kernel) * num_channels))),
        )
        self.bias = self.create_parameter([num_filters], bias_attr, is_bias=True)

    @override
    def forward(self, input: Any) -> Any:
        return activated(conv3d(input, self.weight, self.bias, *self._options), self._act)


class InstanceNorm(InstanceNorm2D):
    """Mean 0 and variance 1 over the space of each channel of each sample."""

    def __init__(
        self,
        num_channels: int,
        epsilon: float = 1e-5,
        param_attr: Any = None,
        bias_attr: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(num_channels, epsilon, weight_attr=param_attr, bias_attr=bias_attr)


class BilinearTensorProduct(Bilinear):
    """Sums of products of both inputs, with weights."""

    def __init__(
        self,
        input1_dim: int,
        input2_dim: int,
        output_dim: int,
        name: str | None = None,
        act: str | None = None,
        param_attr: Any = None,
        bias_attr: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(input1_dim, input2_dim, output_dim, param_attr, bias_attr, name)
        self._act = act

    @override
    def forward(self, x: Any, y: Any) -> Any:
        return activated(super().forward(x, y), self._act)


class GRUUnit(Layer):
    """One step of a GRU, whose input is already multiplied: [batch, 3 * width]."""

    def __init__(
        self,
        size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        activation: str = "tanh",
        gate_activation: str = "sigmoid",
        origin_mode: bool = False,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(dtype=dtype)
        width = size // 3
        self._acts = (ACTIVATIONS[gate_activation], ACTIVATIONS[activation])
        self._origin_mode = origin_mode
        self.weight = self.create_parameter([width, 3 * width], param_attr)
        self.bias = self.create_parameter([1, 3 * width], bias_attr, is_bias=True)

    @override
    def forward(self, input: Any, hidden: Any) -> tuple[Any, Any, Any]:
        """The new state, the state behind the reset gate, and the gates."""
        x = input if self.bias is None else input + self.bias
        return gru_step(x, hidden, self.weight, *self._acts, self._origin_mode)

"""``paddle.nn.layer.conv``: convolutions."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

import math
from collections.abc import Callable
from typing import Any

import torch
from typing_extensions import override

from fleetx.compat.fills import Bell
from fleetx.compat.paddle.nn.functional import common
from fleetx.compat.paddle.nn.functional import conv as F
from fleetx.compat.paddle.nn.layer.layers import Layer

_MODES = {"reflect": "reflect", "replicate": "replicate", "circular": "circular"}


class _Conv(Layer):
    count = 2
    layout = "NCHW"
    function: Callable[..., Any] = F.conv2d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        padding_mode: str = "zeros",
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
    ) -> None:
        super().__init__()
        kernel = common.several(kernel_size, self.count)
        self._stride, self._padding, self._dilation = stride, padding, dilation
        self._groups, self._padding_mode = groups, padding_mode
        self._data_format = data_format or self.layout
        std = math.sqrt(2.0 / (math.prod(kernel) * in_channels))
        self.weight = self.create_parameter(
            [out_channels, in_channels // groups, *kernel],
            weight_attr,
            default_initializer=Bell(0.0, std),
        )
        self.bias = self.create_parameter([out_channels], bias_attr, is_bias=True)

    @override
    def forward(self, x: Any) -> Any:
        padding = self._padding
        if self._padding_mode != "zeros":
            x, padding = self._around(x), 0
        return type(self).function(
            x,
            self.weight,
            self.bias,
            self._stride,
            padding,
            self._dilation,
            self._groups,
            self._data_format,
        )

    def _around(self, x: Any) -> Any:
        amounts = common.several(self._padding, self.count)
        pairs = [amount for amount in reversed(amounts) for _ in range(2)]
        return torch.nn.functional.pad(x, pairs, _MODES[self._padding_mode])


class Conv1D(_Conv):
    """A convolution over one axis."""

    count, layout, function = 1, "NCL", F.conv1d


class Conv2D(_Conv):
    """A convolution over two axes."""


class Conv3D(_Conv):
    """A convolution over three axes."""

    count, layout, function = 3, "NCDHW", F.conv3d


class _ConvTranspose(Layer):
    count = 2
    layout = "NCHW"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
        weight_attr: Any = None,
        bias_attr: Any = None,
        data_format: str | None = None,
    ) -> None:
        super().__init__()
        kernel = common.several(kernel_size, self.count)
        self._options = (stride, padding, output_padding, groups, dilation)
        self._data_format = data_format or self.layout
        self.weight = self.create_parameter(
            [in_channels, out_channels // groups, *kernel], weight_attr
        )
        self.bias = self.create_parameter([out_channels], bias_attr, is_bias=True)

    @override
    def forward(self, x: Any, output_size: Any = None) -> Any:
        return F.transposed(
            self.count,
            *(x, self.weight, self.bias, *self._options),
            output_size,
            self._data_format,
        )


class Conv1DTranspose(_ConvTranspose):
    """A convolution over one axis, the other way."""

    count, layout = 1, "NCL"


class Conv2DTranspose(_ConvTranspose):
    """A convolution over two axes, the other way."""


class Conv3DTranspose(_ConvTranspose):
    """A convolution over three axes, the other way."""

    count, layout = 3, "NCDHW"

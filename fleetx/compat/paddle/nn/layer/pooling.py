"""``paddle.nn.layer.pooling``: largest numbers and means of windows."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from fleetx.compat.paddle.nn.functional import pooling as F
from fleetx.compat.paddle.nn.layer.layers import Layer


class _Max(Layer):
    function: Callable[..., Any]

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        return_mask: bool = False,
        ceil_mode: bool = False,
        data_format: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._given = (kernel_size, stride, padding, return_mask, ceil_mode)
        self._layout = {} if data_format is None else {"data_format": data_format}

    @override
    def forward(self, x: Any) -> Any:
        return type(self).function(x, *self._given, **self._layout)


class MaxPool1D(_Max):
    """The largest number of each window of one axis."""

    function = F.max_pool1d


class MaxPool2D(_Max):
    """The largest number of each window of two axes."""

    function = F.max_pool2d


class MaxPool3D(_Max):
    """The largest number of each window of three axes."""

    function = F.max_pool3d


class AvgPool1D(Layer):
    """The mean of each window of one axis."""

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        exclusive: bool = True,
        ceil_mode: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._given = (kernel_size, stride, padding, exclusive, ceil_mode)

    @override
    def forward(self, x: Any) -> Any:
        return F.avg_pool1d(x, *self._given)


class AvgPool2D(Layer):
    """The mean of each window of two axes."""

    function: Callable[..., Any] = F.avg_pool2d

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        exclusive: bool = True,
        divisor_override: Any = None,
        data_format: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._given = (kernel_size, stride, padding, ceil_mode, exclusive, divisor_override)
        self._layout = {} if data_format is None else {"data_format": data_format}

    @override
    def forward(self, x: Any) -> Any:
        return type(self).function(x, *self._given, **self._layout)


class AvgPool3D(AvgPool2D):
    """The mean of each window of three axes."""

    function = F.avg_pool3d


class _Adaptive(Layer):
    function: Callable[..., Any]
    option = "data_format"

    def __init__(self, output_size: Any, *args: Any, name: str | None = None, **kwargs: Any):
        super().__init__()
        given = {**dict(zip([self.option], args, strict=False)), **kwargs}
        if set(given) - {self.option}:
            raise TypeError(f"{type(self).__name__}() takes output_size and {self.option}")
        self._output_size, self._given = output_size, given

    @override
    def forward(self, x: Any) -> Any:
        return type(self).function(x, self._output_size, **self._given)


class AdaptiveAvgPool1D(_Adaptive):
    """Means of so many windows of one axis."""

    function = F.adaptive_avg_pool1d


class AdaptiveAvgPool2D(_Adaptive):
    """Means of so many windows of two axes."""

    function = F.adaptive_avg_pool2d


class AdaptiveAvgPool3D(_Adaptive):
    """Means of so many windows of three axes."""

    function = F.adaptive_avg_pool3d


class AdaptiveMaxPool1D(_Adaptive):
    """The largest numbers of so many windows of one axis."""

    function, option = F.adaptive_max_pool1d, "return_mask"


class AdaptiveMaxPool2D(_Adaptive):
    """The largest numbers of so many windows of two axes."""

    function, option = F.adaptive_max_pool2d, "return_mask"


class AdaptiveMaxPool3D(_Adaptive):
    """The largest numbers of so many windows of three axes."""

    function, option = F.adaptive_max_pool3d, "return_mask"

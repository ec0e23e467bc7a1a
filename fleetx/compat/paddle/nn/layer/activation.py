"""``paddle.nn.layer.activation``: activations as layers."""

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from fleetx.compat.fills import Number
from fleetx.compat.paddle.nn.functional import activation as F
from fleetx.compat.paddle.nn.layer.layers import Layer


class _Activation(Layer):
    """A function of each number, with options in Paddle's order."""

    function: Callable[..., Any]
    options: tuple[str, ...] = ()

    def __init__(self, *args: Any, name: str | None = None, **kwargs: Any) -> None:
        super().__init__()
        unknown = [key for key in kwargs if key not in self.options]
        if unknown or len(args) > len(self.options):
            raise TypeError(
                f"{type(self).__name__}() takes {', '.join(self.options) or 'no options'}, got "
                f"{', '.join(unknown) or args}"
            )
        self._given = {**dict(zip(self.options, args, strict=False)), **kwargs}

    @override
    def forward(self, x: Any) -> Any:
        return type(self).function(x, **self._given)


class ReLU(_Activation):
    """0 below 0."""

    function = F.relu


class ReLU6(_Activation):
    """Between 0 and 6."""

    function = F.relu6


class GELU(_Activation):
    """Times the normal distribution's share below it."""

    function = F.gelu
    options = ("approximate",)


class Sigmoid(_Activation):
    """Between 0 and 1."""

    function = F.sigmoid


class Tanh(_Activation):
    """Between -1 and 1."""

    function = F.tanh


class Softmax(_Activation):
    """Probabilities along an axis."""

    function = F.softmax
    options = ("axis",)


class LogSoftmax(_Activation):
    """Logarithms of probabilities along an axis."""

    function = F.log_softmax
    options = ("axis",)


class LeakyReLU(_Activation):
    """Flatter below 0."""

    function = F.leaky_relu
    options = ("negative_slope",)


class ELU(_Activation):
    """An exponential below 0."""

    function = F.elu
    options = ("alpha",)


class SELU(_Activation):
    """A scaled exponential below 0."""

    function = F.selu
    options = ("scale", "alpha")


class Silu(_Activation):
    """Times its sigmoid."""

    function = F.silu


class Swish(_Activation):
    """Times its sigmoid."""

    function = F.swish


class Mish(_Activation):
    """Times tanh of softplus."""

    function = F.mish


class Hardswish(_Activation):
    """Times a straight sigmoid."""

    function = F.hardswish


class Hardsigmoid(_Activation):
    """A straight line between 0 and 1."""

    function = F.hardsigmoid


class Hardtanh(_Activation):
    """Within two bounds."""

    function = F.hardtanh
    options = ("min", "max")


class Softplus(_Activation):
    """A smooth relu."""

    function = F.softplus
    options = ("beta", "threshold")


class Softsign(_Activation):
    """Over one and its size."""

    function = F.softsign


class LogSigmoid(_Activation):
    """The logarithm of the sigmoid."""

    function = F.log_sigmoid


class PReLU(Layer):
    """A learnt slope below 0."""

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        weight_attr: Any = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__()
        self._weight = self.create_parameter(
            [num_parameters], weight_attr, default_initializer=Number(init)
        )

    @override
    def forward(self, x: Any) -> Any:
        return F.prelu(x, self._weight)

"""``paddle.nn.layer.activation``: activations as layers."""

from typing import Any

from typing_extensions import override

from fleetx.compat.fills import Number
from fleetx.compat.paddle.nn.functional import activation as F
from fleetx.compat.paddle.nn.layer.called import Called
from fleetx.compat.paddle.nn.layer.layers import Layer

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Maxout",
    "Mish",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "Sigmoid",
    "Silu",
    "Softmax",
    "Softmax2D",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Swish",
    "Tanh",
    "Tanhshrink",
    "ThresholdedReLU",
]


class ReLU(Called):
    """0 below 0."""

    function = F.relu


class ReLU6(Called):
    """Between 0 and 6."""

    function = F.relu6


class GELU(Called):
    """Times the normal distribution's share below it."""

    function = F.gelu
    options = ("approximate",)


class Sigmoid(Called):
    """Between 0 and 1."""

    function = F.sigmoid


class Tanh(Called):
    """Between -1 and 1."""

    function = F.tanh


class Softmax(Called):
    """Probabilities along an axis."""

    function = F.softmax
    options = ("axis",)


class LogSoftmax(Called):
    """Logarithms of probabilities along an axis."""

    function = F.log_softmax
    options = ("axis",)


class LeakyReLU(Called):
    """Flatter below 0."""

    function = F.leaky_relu
    options = ("negative_slope",)


class ELU(Called):
    """An exponential below 0."""

    function = F.elu
    options = ("alpha",)


class SELU(Called):
    """A scaled exponential below 0."""

    function = F.selu
    options = ("scale", "alpha")


class Silu(Called):
    """Times its sigmoid."""

    function = F.silu


class Swish(Called):
    """Times its sigmoid."""

    function = F.swish


class Mish(Called):
    """Times tanh of softplus."""

    function = F.mish


class Hardswish(Called):
    """Times a straight sigmoid."""

    function = F.hardswish


class Hardsigmoid(Called):
    """A straight line between 0 and 1."""

    function = F.hardsigmoid


class Hardtanh(Called):
    """Within two bounds."""

    function = F.hardtanh
    options = ("min", "max")


class Softplus(Called):
    """A smooth relu."""

    function = F.softplus
    options = ("beta", "threshold")


class Softsign(Called):
    """Over one and its size."""

    function = F.softsign


class LogSigmoid(Called):
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


class CELU(Called):
    """An exponential below 0, smooth at 0."""

    function = F.celu
    options = ("alpha",)


class GLU(Called):
    """One half times the sigmoid of the other."""

    function = F.glu
    options = ("axis",)


class Hardshrink(Called):
    """0 where it is small."""

    function = F.hardshrink
    options = ("threshold",)


class Softshrink(Called):
    """Nearer to 0, and 0 where it is small."""

    function = F.softshrink
    options = ("threshold",)


class Tanhshrink(Called):
    """Less its tanh."""

    function = F.tanhshrink


class ThresholdedReLU(Called):
    """0 below a threshold."""

    function = F.thresholded_relu
    options = ("threshold",)


class Maxout(Called):
    """The largest of each group of channels."""

    function = F.maxout
    options = ("groups", "axis")


class RReLU(Called):
    """Flatter below 0, by a slope that is drawn."""

    function = F.rrelu
    options = ("lower", "upper")

    @override
    def forward(self, x: Any) -> Any:
        return F.rrelu(x, training=self.training, **self._given)


class Softmax2D(Called):
    """Probabilities of channels."""

    @override
    def forward(self, x: Any) -> Any:
        return F.softmax(x, axis=-3)

"""``paddle.vision.models.mobilenetv1``."""

from typing import Any

from typing_extensions import override

from fleetx.compat.paddle.nn.layer.activation import ReLU
from fleetx.compat.paddle.nn.layer.common import Linear
from fleetx.compat.paddle.nn.layer.container import Sequential
from fleetx.compat.paddle.nn.layer.conv import Conv2D
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.nn.layer.norm import BatchNorm2D
from fleetx.compat.paddle.nn.layer.pooling import AdaptiveAvgPool2D
from fleetx.compat.paddle.tensor.manipulation import flatten
from fleetx.compat.paddle.vision.models.pretrained import refuse

PLAN = {
    "conv2_1": (64, 1),
    "conv2_2": (128, 2),
    "conv3_1": (128, 1),
    "conv3_2": (256, 2),
    "conv4_1": (256, 1),
    "conv4_2": (512, 2),
    **{f"conv5_{at}": (512, 1) for at in range(1, 6)},
    "conv5_6": (1024, 2),
    "conv6": (1024, 1),
}
"""Widths and strides."""


def _step(inputs: int, outputs: int, kernel: int, stride: int, groups: int = 1) -> Any:
    return Sequential(
        Conv2D(
            inputs,
            outputs,
            kernel,
            stride=stride,
            padding=(kernel - 1) // 2,
            groups=groups,
            bias_attr=False,
        ),
        BatchNorm2D(outputs),
        ReLU(),
    )


class DepthwiseSeparable(Layer):
    """A convolution of each channel, then one over channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self._depthwise_conv = _step(inputs, inputs, 3, stride, groups=inputs)
        self._pointwise_conv = _step(inputs, outputs, 1, 1)

    @override
    def forward(self, x: Any) -> Any:
        return self._pointwise_conv(self._depthwise_conv(x))


class MobileNetV1(Layer):
    """A net of separable convolutions."""

    def __init__(self, scale: float = 1.0, num_classes: int = 1000, with_pool: bool = True) -> None:
        super().__init__()
        self.scale, self.num_classes, self.with_pool = scale, num_classes, with_pool
        inputs = int(32 * scale)
        self.conv1 = _step(3, inputs, 3, 2)
        for name, (width, stride) in PLAN.items():
            self.add_sublayer(name, DepthwiseSeparable(inputs, int(width * scale), stride))
            inputs = int(width * scale)
        if with_pool:
            self.pool2d_avg = AdaptiveAvgPool2D(1)
        if num_classes > 0:
            self.fc = Linear(inputs, num_classes)

    @override
    def forward(self, x: Any) -> Any:
        x = self.conv1(x)
        for name in PLAN:
            x = getattr(self, name)(x)
        x = self.pool2d_avg(x) if self.with_pool else x
        return self.fc(flatten(x, 1)) if self.num_classes > 0 else x


def mobilenet_v1(pretrained: bool = False, scale: float = 1.0, **kwargs: Any) -> MobileNetV1:
    """The net, at a scale of its width."""
    refuse("mobilenet_v1", pretrained)
    return MobileNetV1(scale=scale, **kwargs)

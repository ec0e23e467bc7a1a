"""``paddle.vision.models.mobilenetv2``."""

from typing import Any

from typing_extensions import override

from fleetx.compat.paddle.nn.layer.activation import ReLU6
from fleetx.compat.paddle.nn.layer.common import Dropout, Linear
from fleetx.compat.paddle.nn.layer.container import Sequential
from fleetx.compat.paddle.nn.layer.conv import Conv2D
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.nn.layer.norm import BatchNorm2D
from fleetx.compat.paddle.nn.layer.pooling import AdaptiveAvgPool2D
from fleetx.compat.paddle.tensor.manipulation import flatten
from fleetx.compat.paddle.vision.models.pretrained import refuse

PLAN = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]
"""How much wider inside, width, how often, stride of the first."""


def _divisible(value: float, by: int = 8) -> int:
    near = max(by, int(value + by / 2) // by * by)
    return near + by if near < 0.9 * value else near


def _step(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> Any:
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
        ReLU6(),
    )


class InvertedResidual(Layer):
    """Wide inside, narrow at both ends."""

    def __init__(self, inp: int, oup: int, stride: int, expand_ratio: int) -> None:
        super().__init__()
        hidden = round(inp * expand_ratio)
        self.use_res_connect = stride == 1 and inp == oup
        self.conv = Sequential(
            *([_step(inp, hidden, 1)] if expand_ratio != 1 else []),
            _step(hidden, hidden, stride=stride, groups=hidden),
            Conv2D(hidden, oup, 1, bias_attr=False),
            BatchNorm2D(oup),
        )

    @override
    def forward(self, x: Any) -> Any:
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNetV2(Layer):
    """A net of inverted residuals."""

    def __init__(self, scale: float = 1.0, num_classes: int = 1000, with_pool: bool = True) -> None:
        super().__init__()
        self.num_classes, self.with_pool = num_classes, with_pool
        inputs = _divisible(32 * scale)
        self.last_channel = _divisible(1280 * max(1.0, scale))
        features = [_step(3, inputs, stride=2)]
        for wider, width, count, stride in PLAN:
            outputs = _divisible(width * scale)
            for at in range(count):
                features.append(InvertedResidual(inputs, outputs, stride if at == 0 else 1, wider))
                inputs = outputs
        self.features = Sequential(*features, _step(inputs, self.last_channel, 1))
        if with_pool:
            self.pool2d_avg = AdaptiveAvgPool2D(1)
        if num_classes > 0:
            self.classifier = Sequential(Dropout(0.2), Linear(self.last_channel, num_classes))

    @override
    def forward(self, x: Any) -> Any:
        x = self.features(x)
        x = self.pool2d_avg(x) if self.with_pool else x
        return self.classifier(flatten(x, 1)) if self.num_classes > 0 else x


def mobilenet_v2(pretrained: bool = False, scale: float = 1.0, **kwargs: Any) -> MobileNetV2:
    """The net, at a scale of its width."""
    refuse("mobilenet_v2", pretrained)
    return MobileNetV2(scale=scale, **kwargs)

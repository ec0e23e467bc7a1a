"""``paddle.vision.models.vgg``."""

from typing import Any

from typing_extensions import override

from fleetx.compat.paddle.nn.layer.activation import ReLU
from fleetx.compat.paddle.nn.layer.common import Dropout, Linear
from fleetx.compat.paddle.nn.layer.container import Sequential
from fleetx.compat.paddle.nn.layer.conv import Conv2D
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.nn.layer.norm import BatchNorm2D
from fleetx.compat.paddle.nn.layer.pooling import AdaptiveAvgPool2D, MaxPool2D
from fleetx.compat.paddle.tensor.manipulation import flatten
from fleetx.compat.paddle.vision.models.pretrained import refuse

WIDTHS = (64, 128, 256, 512, 512)
COUNTS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


class VGG(Layer):
    """Convolutions and three linear layers."""

    def __init__(self, features: Any, num_classes: int = 1000, with_pool: bool = True) -> None:
        super().__init__()
        self.features, self.num_classes, self.with_pool = features, num_classes, with_pool
        if with_pool:
            self.avgpool = AdaptiveAvgPool2D((7, 7))
        if num_classes > 0:
            self.classifier = Sequential(
                Linear(512 * 7 * 7, 4096),
                ReLU(),
                Dropout(),
                Linear(4096, 4096),
                ReLU(),
                Dropout(),
                Linear(4096, num_classes),
            )

    @override
    def forward(self, x: Any) -> Any:
        x = self.features(x)
        x = self.avgpool(x) if self.with_pool else x
        return self.classifier(flatten(x, 1)) if self.num_classes > 0 else x


def _features(depth: int, batch_norm: bool) -> Any:
    layers: list[Any] = []
    inputs = 3
    for width, count in zip(WIDTHS, COUNTS[depth], strict=True):
        for _ in range(count):
            layers.append(Conv2D(inputs, width, kernel_size=3, padding=1))
            layers += [BatchNorm2D(width)] if batch_norm else []
            layers.append(ReLU())
            inputs = width
        layers.append(MaxPool2D(kernel_size=2, stride=2))
    return Sequential(*layers)


def _vgg(depth: int, pretrained: bool, batch_norm: bool, options: dict[str, Any]) -> VGG:
    refuse(f"vgg{depth}", pretrained)
    return VGG(_features(depth, batch_norm), **options)


def vgg11(pretrained: bool = False, batch_norm: bool = False, **kwargs: Any) -> VGG:
    """11 layers."""
    return _vgg(11, pretrained, batch_norm, kwargs)


def vgg13(pretrained: bool = False, batch_norm: bool = False, **kwargs: Any) -> VGG:
    """13 layers."""
    return _vgg(13, pretrained, batch_norm, kwargs)


def vgg16(pretrained: bool = False, batch_norm: bool = False, **kwargs: Any) -> VGG:
    """16 layers."""
    return _vgg(16, pretrained, batch_norm, kwargs)


def vgg19(pretrained: bool = False, batch_norm: bool = False, **kwargs: Any) -> VGG:
    """19 layers."""
    return _vgg(19, pretrained, batch_norm, kwargs)

"""``paddle.vision.models.resnet``."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from collections.abc import Callable
from typing import Any, ClassVar

from typing_extensions import override

from fleetx.compat.paddle.nn.layer.activation import ReLU
from fleetx.compat.paddle.nn.layer.common import Linear
from fleetx.compat.paddle.nn.layer.container import Sequential
from fleetx.compat.paddle.nn.layer.conv import Conv2D
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.nn.layer.norm import BatchNorm2D
from fleetx.compat.paddle.nn.layer.pooling import AdaptiveAvgPool2D, MaxPool2D
from fleetx.compat.paddle.tensor.manipulation import flatten
from fleetx.compat.paddle.vision.models.pretrained import refuse


class BasicBlock(Layer):
    """Two convolutions beside a shortcut."""

    expansion = 1

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: Any = None,
        groups: int = 1,
        base_width: int = 64,
        dilation: int = 1,
        norm_layer: Any = None,
    ) -> None:
        super().__init__()
        norm = norm_layer or BatchNorm2D
        self.conv1 = Conv2D(inplanes, planes, 3, padding=1, stride=stride, bias_attr=False)
        self.bn1 = norm(planes)
        self.relu = ReLU()
        self.conv2 = Conv2D(planes, planes, 3, padding=1, bias_attr=False)
        self.bn2 = norm(planes)
        self.downsample, self.stride = downsample, stride

    @override
    def forward(self, x: Any) -> Any:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + shortcut)


class BottleneckBlock(Layer):
    """A narrow convolution between two of size 1, beside a shortcut."""

    expansion = 4

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        downsample: Any = None,
        groups: int = 1,
        base_width: int = 64,
        dilation: int = 1,
        norm_layer: Any = None,
    ) -> None:
        super().__init__()
        norm, width = norm_layer or BatchNorm2D, int(planes * (base_width / 64.0)) * groups
        wide = planes * self.expansion
        self.conv1 = Conv2D(inplanes, width, 1, bias_attr=False)
        self.bn1 = norm(width)
        self.conv2 = Conv2D(
            width,
            width,
            3,
            padding=dilation,
            stride=stride,
            groups=groups,
            dilation=dilation,
            bias_attr=False,
        )
        self.bn2 = norm(width)
        self.conv3 = Conv2D(width, wide, 1, bias_attr=False)
        self.bn3 = norm(wide)
        self.relu = ReLU()
        self.downsample, self.stride = downsample, stride

    @override
    def forward(self, x: Any) -> Any:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(Layer):
    """Residual nets of 18 to 152 layers."""

    counts: ClassVar = {
        18: [2, 2, 2, 2],
        34: [3, 4, 6, 3],
        50: [3, 4, 6, 3],
        101: [3, 4, 23, 3],
        152: [3, 8, 36, 3],
    }

    def __init__(
        self,
        block: Any,
        depth: int = 50,
        width: int = 64,
        num_classes: int = 1000,
        with_pool: bool = True,
        groups: int = 1,
    ) -> None:
        super().__init__()
        if depth not in self.counts:
            raise ValueError(f"ResNet(depth={depth}): one of {', '.join(map(str, self.counts))}.")
        self.num_classes, self.with_pool = num_classes, with_pool
        self.groups, self.base_width = groups, width
        self.inplanes = 64
        self.conv1 = Conv2D(3, 64, 7, stride=2, padding=3, bias_attr=False)
        self.bn1 = BatchNorm2D(64)
        self.relu = ReLU()
        self.maxpool = MaxPool2D(kernel_size=3, stride=2, padding=1)
        counts = self.counts[depth]
        self.layer1 = self._stage(block, 64, counts[0])
        self.layer2 = self._stage(block, 128, counts[1], 2)
        self.layer3 = self._stage(block, 256, counts[2], 2)
        self.layer4 = self._stage(block, 512, counts[3], 2)
        if with_pool:
            self.avgpool = AdaptiveAvgPool2D((1, 1))
        if num_classes > 0:
            self.fc = Linear(512 * block.expansion, num_classes)

    def _stage(self, block: Any, planes: int, count: int, stride: int = 1) -> Any:
        wide, shortcut = planes * block.expansion, None
        if stride != 1 or self.inplanes != wide:
            shortcut = Sequential(
                Conv2D(self.inplanes, wide, 1, stride=stride, bias_attr=False), BatchNorm2D(wide)
            )
        options: dict[str, Any] = {"groups": self.groups, "base_width": self.base_width}
        first = block(self.inplanes, planes, stride, shortcut, **options)
        self.inplanes = wide
        return Sequential(first, *[block(wide, planes, **options) for _ in range(count - 1)])

    @override
    def forward(self, x: Any) -> Any:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = self.avgpool(x) if self.with_pool else x
        return self.fc(flatten(x, 1)) if self.num_classes > 0 else x


def _resnet(block: Any, depth: int, pretrained: bool, options: dict[str, Any]) -> ResNet:
    refuse(f"resnet{depth}", pretrained)
    return ResNet(block, depth, **options)


def _grouped(name: str, depth: int, groups: int, width: int) -> Callable[..., ResNet]:
    """A net of bottlenecks of other widths, under its name."""

    def made(pretrained: bool = False, **kwargs: Any) -> ResNet:
        refuse(name, pretrained)
        return ResNet(BottleneckBlock, depth, **{"groups": groups, "width": width, **kwargs})

    made.__name__ = made.__qualname__ = name
    made.__doc__ = f"{depth} layers, {groups} groups of {width} channels."
    return made


resnext50_32x4d = _grouped("resnext50_32x4d", 50, 32, 4)
resnext50_64x4d = _grouped("resnext50_64x4d", 50, 64, 4)
resnext101_32x4d = _grouped("resnext101_32x4d", 101, 32, 4)
resnext101_64x4d = _grouped("resnext101_64x4d", 101, 64, 4)
resnext152_32x4d = _grouped("resnext152_32x4d", 152, 32, 4)
resnext152_64x4d = _grouped("resnext152_64x4d", 152, 64, 4)
wide_resnet50_2 = _grouped("wide_resnet50_2", 50, 1, 128)
wide_resnet101_2 = _grouped("wide_resnet101_2", 101, 1, 128)


def resnet18(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """18 layers."""
    return _resnet(BasicBlock, 18, pretrained, kwargs)


def resnet34(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """34 layers."""
    return _resnet(BasicBlock, 34, pretrained, kwargs)


def resnet50(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """50 layers."""
    return _resnet(BottleneckBlock, 50, pretrained, kwargs)


def resnet101(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """101 layers."""
    return _resnet(BottleneckBlock, 101, pretrained, kwargs)


def resnet152(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """152 layers."""
    return _resnet(BottleneckBlock, 152, pretrained, kwargs)

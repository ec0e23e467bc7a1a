"""The ResNet family, with the stride in the 3 x 3 convolution and torchvision's names."""

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from fleetx.applications.image_model import ImageModel


class Basic(nn.Module):
    """Two 3 x 3 convolutions around which the input flows."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Residual plus shortcut."""
        inner = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(inner)) + self.downsample(x))


class Bottleneck(nn.Module):
    """A 3 x 3 convolution between two that narrow and widen."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Residual plus shortcut."""
        inner = F.relu(self.bn1(self.conv1(x)))
        inner = F.relu(self.bn2(self.conv2(inner)))
        return F.relu(self.bn3(self.conv3(inner)) + self.downsample(x))


class ResNet(ImageModel):
    """A stem, four stages of blocks, and a classifier.

    Args:
        class_dim: how many classes.
        width: channels of the first stage; smaller ones for small machines.
    """

    block: ClassVar[type[Basic | Bottleneck]]
    counts: ClassVar[tuple[int, int, int, int]]

    def __init__(self, class_dim: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self._channels = width
        self.layer1 = self._stage(width, self.counts[0], stride=1)
        self.layer2 = self._stage(2 * width, self.counts[1], stride=2)
        self.layer3 = self._stage(4 * width, self.counts[2], stride=2)
        self.layer4 = self._stage(8 * width, self.counts[3], stride=2)
        self.fc = nn.Linear(self._channels, class_dim)
        self._begin()

    def _stage(self, width: int, count: int, stride: int) -> nn.Sequential:
        blocks = nn.Sequential()
        for at in range(count):
            blocks.append(self.block(self._channels, width, 1 if at else stride))
            self._channels = width * self.block.expansion
        return blocks

    def _begin(self) -> None:
        """Every block begins as its shortcut, which large batches need."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Basic):
                nn.init.zeros_(module.bn2.weight)
            elif isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)

    @property
    @override
    def checkpoints(self) -> list[str]:
        """Every block: the stem and the classifier are run once."""
        return [
            f"layer{stage}.{block}"
            for stage, count in enumerate(self.counts, 1)
            for block in range(count)
        ]

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(images))), 3, 2, padding=1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


class Resnet18(ResNet):
    """ResNet-18."""

    block, counts = Basic, (2, 2, 2, 2)


class Resnet34(ResNet):
    """ResNet-34."""

    block, counts = Basic, (3, 4, 6, 3)


class Resnet50(ResNet):
    """ResNet-50."""

    block, counts = Bottleneck, (3, 4, 6, 3)


class Resnet101(ResNet):
    """ResNet-101."""

    block, counts = Bottleneck, (3, 4, 23, 3)


class Resnet152(ResNet):
    """ResNet-152."""

    block, counts = Bottleneck, (3, 8, 36, 3)


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

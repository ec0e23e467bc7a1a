"""A small residual network for 32 x 32 images."""

from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two convolutions around which the input flows unchanged."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        """Residual plus shortcut."""
        inner = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, ``blocks`` blocks in each of three stages, and a classifier."""

    def __init__(self, classes: int = 10, width: int = 16, blocks: int = 1) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        stages, inputs = [], width
        for stage in range(3):
            outputs = width * 2**stage
            for block in range(blocks):
                stages.append(Block(inputs, outputs, stride=2 if stage and not block else 1))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images -> logits."""
        return self.classifier(self.stages(self.stem(x)).mean(dim=(2, 3)))

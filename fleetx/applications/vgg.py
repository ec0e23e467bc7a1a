"""VGG-16, with torchvision's names."""

from torch import Tensor, nn
from typing_extensions import override

from fleetx.applications.image_model import ImageModel

STAGES = (2, 2, 3, 3, 3)
"""Convolutions before each halving."""


class VGG16(ImageModel):
    """Thirteen convolutions and three linear layers.

    Args:
        class_dim: how many classes.
        width: channels of the first stage.
        hidden: features between the linear layers.
    """

    def __init__(self, class_dim: int = 1000, width: int = 64, hidden: int = 4096) -> None:
        super().__init__()
        self.features = nn.Sequential()
        channels = 3
        for stage, count in enumerate(STAGES):
            for _ in range(count):
                outputs = width * min(2**stage, 8)
                self.features.append(nn.Conv2d(channels, outputs, 3, padding=1))
                self.features.append(nn.ReLU())
                channels = outputs
            self.features.append(nn.MaxPool2d(2))
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(channels * 49, hidden),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(hidden, class_dim),
        )
        self._begin()

    def _begin(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.bias)

    @property
    @override
    def checkpoints(self) -> list[str]:
        """Everything but the classifier, whose activations are small."""
        return ["features"]

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        found = self.avgpool(self.features(images)).flatten(1)
        return self.classifier(found)  # type: ignore[no-any-return]

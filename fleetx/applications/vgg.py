"""VGG-16, which loads torchvision's weights."""

import re
from typing import Any

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
            outputs = width * min(2**stage, 8)
            self.features.append(_stage(channels, outputs, count))
            channels = outputs
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
        self.register_load_state_dict_pre_hook(_in_stages)  # type: ignore[no-untyped-call]

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
        """Every stage: backward holds the activations of one at a time."""
        return [f"features.{stage}" for stage in range(len(STAGES))]

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        found = self.avgpool(self.features(images)).flatten(1)
        return self.classifier(found)  # type: ignore[no-any-return]


def _stage(inputs: int, outputs: int, count: int) -> nn.Sequential:
    """Convolutions and a halving."""
    stage = nn.Sequential()
    for at in range(count):
        stage.append(nn.Conv2d(outputs if at else inputs, outputs, 3, padding=1))
        stage.append(nn.ReLU())
    return stage.append(nn.MaxPool2d(2))


def _in_stages(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Published weights number all layers in one row; ours are numbered within their stages."""
    places = [(at, place) for at, count in enumerate(STAGES) for place in range(2 * count + 1)]
    flat = re.compile(rf"{re.escape(prefix)}features\.(\d+)\.(weight|bias)")
    for name in [*state]:
        # Those behind our last layer are of another network; load_state_dict says so.
        if (found := flat.fullmatch(name)) and int(found[1]) < len(places):
            stage, place = places[int(found[1])]
            state[f"{prefix}features.{stage}.{place}.{found[2]}"] = state.pop(name)

"""``paddle.vision.models.lenet``."""

from typing import Any

from typing_extensions import override

from fleetx.compat.paddle.nn.layer.activation import ReLU
from fleetx.compat.paddle.nn.layer.common import Linear
from fleetx.compat.paddle.nn.layer.container import Sequential
from fleetx.compat.paddle.nn.layer.conv import Conv2D
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.nn.layer.pooling import MaxPool2D
from fleetx.compat.paddle.tensor.manipulation import flatten


class LeNet(Layer):
    """A small net for pictures of 28 x 28 grey pixels."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.features = Sequential(
            Conv2D(1, 6, 3, stride=1, padding=1),
            ReLU(),
            MaxPool2D(2, 2),
            Conv2D(6, 16, 5, stride=1, padding=0),
            ReLU(),
            MaxPool2D(2, 2),
        )
        if num_classes > 0:
            self.fc = Sequential(Linear(400, 120), Linear(120, 84), Linear(84, num_classes))

    @override
    def forward(self, inputs: Any) -> Any:
        x = self.features(inputs)
        return self.fc(flatten(x, 1)) if self.num_classes > 0 else x

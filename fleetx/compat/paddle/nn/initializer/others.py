"""Initializers of ``paddle.nn.initializer`` that few scripts use."""

from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from fleetx.compat.fills import BilinearFill, Initializer


class Bilinear(BilinearFill):
    """Enlarges images smoothly."""


class Dirac(Initializer):
    """Filters that hand their input on."""

    def __init__(self, groups: int = 1, name: Any = None) -> None:
        self.groups = groups

    @override
    def fill(self, tensor: Tensor) -> None:
        """Give a tensor its first numbers."""
        nn.init.dirac_(tensor, self.groups)


class Orthogonal(Initializer):
    """Rows or columns that stand at right angles."""

    def __init__(self, gain: float = 1.0, name: Any = None) -> None:
        self.gain = gain

    @override
    def fill(self, tensor: Tensor) -> None:
        """Give a tensor its first numbers."""
        nn.init.orthogonal_(tensor, self.gain)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """How much wider numbers are drawn before an activation."""
    return float(nn.init.calculate_gain(nonlinearity, param))  # type: ignore[arg-type]

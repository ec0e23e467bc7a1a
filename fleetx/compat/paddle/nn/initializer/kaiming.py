"""``paddle.nn.initializer.kaiming``."""

from typing import Any

from torch import nn

from fleetx.compat.fills import KaimingFill


class _Kaiming(KaimingFill):
    is_uniform = False

    def __init__(
        self,
        fan_in: float | None = None,
        negative_slope: float = 0.0,
        nonlinearity: str = "relu",
        mode: Any = None,
    ) -> None:
        super().__init__(fan_in, None, uniform=self.is_uniform)
        self.gain = float(nn.init.calculate_gain(nonlinearity, negative_slope))  # type: ignore[arg-type]


class KaimingNormal(_Kaiming):
    """A normal distribution by what goes in."""


class KaimingUniform(_Kaiming):
    """An even distribution by what goes in."""

    is_uniform = True


class MSRAInitializer(_Kaiming):
    """Paddle 1's name of the even one."""

    is_uniform = True

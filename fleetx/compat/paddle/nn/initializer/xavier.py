"""``paddle.nn.initializer.xavier``."""

from typing import Any

from fleetx.compat.fills import XavierFill


class XavierNormal(XavierFill):
    """A normal distribution by what goes in and comes out."""

    def __init__(
        self, fan_in: float | None = None, fan_out: float | None = None, name: Any = None
    ) -> None:
        super().__init__(fan_in, fan_out, uniform=False)


class XavierUniform(XavierFill):
    """An even distribution by what goes in and comes out."""

    def __init__(
        self, fan_in: float | None = None, fan_out: float | None = None, name: Any = None
    ) -> None:
        super().__init__(fan_in, fan_out, uniform=True)

"""``paddle.nn.initializer.uniform``."""

from typing import Any

from fleetx.compat.fills import Even


class Uniform(Even):
    """Drawn evenly between two numbers."""

    def __init__(self, low: float = -1.0, high: float = 1.0, name: Any = None) -> None:
        super().__init__(low, high)

"""``paddle.nn.initializer.normal``."""

from typing import Any

from fleetx.compat.fills import Bell


class Normal(Bell):
    """Drawn from a normal distribution."""

    def __init__(self, mean: float = 0.0, std: float = 1.0, name: Any = None) -> None:
        super().__init__(mean, std)


class TruncatedNormal(Bell):
    """Drawn from a normal distribution that ends at two deviations."""

    def __init__(self, mean: float = 0.0, std: float = 1.0, name: Any = None) -> None:
        super().__init__(mean, std, cut=True)

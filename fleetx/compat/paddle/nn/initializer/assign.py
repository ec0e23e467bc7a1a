"""``paddle.nn.initializer.assign``."""

from typing import Any

from fleetx.compat.fills import Values


class Assign(Values):
    """These numbers."""

    def __init__(self, value: Any, name: Any = None) -> None:
        super().__init__(value)


NumpyArrayInitializer = Assign

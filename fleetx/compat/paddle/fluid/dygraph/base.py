"""``paddle.fluid.dygraph.base``."""

from typing import Any

from fleetx.compat import modes
from fleetx.compat.modes import dygraph_guard as guard
from fleetx.compat.paddle.autograd import grad, no_grad
from fleetx.compat.paddle.tensor.creation import to_tensor

__all__ = [
    "disable_dygraph",
    "enable_dygraph",
    "enabled",
    "grad",
    "guard",
    "no_grad",
    "to_variable",
]


def to_variable(
    value: Any, name: str | None = None, zero_copy: bool | None = None, dtype: Any = None
) -> Any:
    """A tensor of an array."""
    found = to_tensor(value, dtype)
    if name is not None:
        found.name = name
    return found


def enabled() -> bool:
    """Whether things are computed at once."""
    return modes.in_dygraph_mode()


def enable_dygraph(place: Any = None) -> None:
    """What follows is computed at once."""
    modes.disable_static(place)


def disable_dygraph() -> None:
    """What follows is written into programs."""
    modes.enable_static()

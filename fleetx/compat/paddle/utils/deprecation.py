"""``paddle.utils``: marks of old functions."""

from collections.abc import Callable
from typing import Any


def deprecated(*args: Any, **kwargs: Any) -> Callable[..., Any]:
    """A decorator that leaves a function as it is."""
    return lambda function: function


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Any version is one that scripts ask for here."""

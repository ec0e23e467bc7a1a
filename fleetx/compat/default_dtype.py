"""The format of numbers of which nothing else was said."""

from dataclasses import dataclass
from typing import Any

from fleetx.compat.dtypes import convert_dtype


@dataclass
class _Default:
    name: str = "float32"


_default = _Default()


def get_default_dtype() -> str:
    """Its name."""
    return _default.name


def set_default_dtype(d: Any) -> None:
    """Let it be another: float16, bfloat16, float32 or float64."""
    name = convert_dtype(d)
    if "float" not in name:
        raise TypeError(f"set_default_dtype({d!r}): a default is a format of floats, 'float32'.")
    _default.name = name

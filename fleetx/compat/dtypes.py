"""Names of number formats, as Paddle writes them, and the formats of torch."""

from typing import Any

import numpy as np
import torch

NAMES: dict[str, torch.dtype] = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}


def dtype_of(given: Any) -> torch.dtype:
    """A format by its name, by numpy's or by torch's."""
    if isinstance(given, torch.dtype):
        return given
    name = given if isinstance(given, str) else np.dtype(given).name
    name = {"float": "float32", "int": "int32", "double": "float64"}.get(name, name)
    if name not in NAMES:
        raise TypeError(f"there is no dtype {given!r}; one of {', '.join(NAMES)}.")
    return NAMES[name]


def convert_dtype(given: Any) -> str:
    """The name of a format."""
    found = dtype_of(given)
    return next(name for name, dtype in NAMES.items() if dtype is found)

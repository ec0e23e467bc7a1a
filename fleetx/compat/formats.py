"""Number formats under the names that scripts use: ``paddle.float32``."""

from typing import Any

import torch

from fleetx.compat.dtypes import dtype_of

bool = torch.bool
uint8 = torch.uint8
int8 = torch.int8
int16 = torch.int16
int32 = torch.int32
int64 = torch.int64
float16 = torch.float16
bfloat16 = torch.bfloat16
float32 = torch.float32
float64 = torch.float64
complex64 = torch.complex64
complex128 = torch.complex128
dtype = torch.dtype


def finfo(kind: Any) -> torch.finfo:
    """The limits of a format with fractions."""
    return torch.finfo(dtype_of(kind))


def iinfo(kind: Any) -> torch.iinfo:
    """The limits of a format of whole numbers."""
    return torch.iinfo(dtype_of(kind))

"""``paddle.tensor.attribute``: what a tensor is."""

from typing import Any

import torch

from fleetx.compat.paddle.tensor.manipulation import shape
from fleetx.compat.tensors import op

__all__ = ["imag", "is_complex", "is_floating_point", "is_integer", "rank", "real", "shape"]


@op
def rank(input: Any) -> Any:
    """How many axes it has."""
    return torch.tensor([input.dim()], dtype=torch.int32)


def is_complex(x: Any) -> bool:
    """Whether its numbers are complex."""
    return bool(torch.is_complex(x))


def is_floating_point(x: Any) -> bool:
    """Whether its numbers have fractions."""
    return bool(torch.is_floating_point(x))


def is_integer(x: Any) -> bool:
    """Whether its numbers are whole."""
    whole = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    return x.dtype in whole


@op
def real(x: Any, name: str | None = None) -> Any:
    """The real parts."""
    return torch.real(x)


@op
def imag(x: Any, name: str | None = None) -> Any:
    """The imaginary parts."""
    return torch.imag(x)

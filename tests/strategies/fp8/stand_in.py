"""Lets a CPU multiply float8 matrices, which torch does there, if slowly; counts the products."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from fleetx.torch_internals import scaled_mm

ALLOWED = "fleetx.strategies.fp8.strategy.without_float8"
KERNEL = "fleetx.strategies.fp8.products.scaled_mm"


def device_is_allowed() -> Any:
    """While it is entered, models are laid out as on a GPU that has float8."""
    return mock.patch(ALLOWED, return_value="")


class Multiplied(list[tuple[Tensor, Tensor, dict[str, Any]]]):
    """The factors of all products, in their order."""

    def __call__(self, first: Tensor, second: Tensor, **more: Any) -> Any:
        self.append((first, second, more))
        return scaled_mm(first, second, **more)


@contextmanager
def multiplied() -> Iterator[Multiplied]:
    """The products in float8 that are made meanwhile, outside of compiled code."""
    found = Multiplied()
    with mock.patch(KERNEL, found):
        yield found


def needs_kernel(*, by_row: bool) -> None:
    """Skip the test if torch cannot multiply in this way on a CPU: GPUs alone have it in 2.11."""
    if by_row and not _multiplies_by_row():
        pytest.skip(f"torch {torch.__version__} has no kernel for scales by row on a CPU")


@cache
def _multiplies_by_row() -> bool:
    factor, scale = torch.zeros(16, 16).to(torch.float8_e4m3fn), torch.ones(16, 1)
    try:
        scaled_mm(factor, factor.t(), scale_a=scale, scale_b=scale.t(), out_dtype=torch.bfloat16)
    except RuntimeError:
        return False
    return True

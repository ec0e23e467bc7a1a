"""Lets a CPU multiply float8 matrices, which torch does there, if slowly; counts the products."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

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

"""``paddle.tensor.logic``: comparisons."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from collections.abc import Callable
from typing import Any

import torch

from fleetx.compat.recorded import rebind
from fleetx.compat.tensors import at_least_1d, op, wrap


def _two(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, y: Any, out: Any = None, name: str | None = None) -> Any:
        found = wrap(function(x, y))
        return found if out is None else rebind(out, found)

    call.__name__, call.__doc__ = name, f"{name} of two tensors, number by number."
    return call


equal = _two("equal", torch.eq)
not_equal = _two("not_equal", torch.ne)
greater_than = _two("greater_than", torch.gt)
greater_equal = _two("greater_equal", torch.ge)
less_than = _two("less_than", torch.lt)
less_equal = _two("less_equal", torch.le)
logical_and = _two("logical_and", torch.logical_and)
logical_or = _two("logical_or", torch.logical_or)
logical_xor = _two("logical_xor", torch.logical_xor)
bitwise_and = _two("bitwise_and", torch.bitwise_and)
bitwise_or = _two("bitwise_or", torch.bitwise_or)
bitwise_xor = _two("bitwise_xor", torch.bitwise_xor)


def logical_not(x: Any, out: Any = None, name: str | None = None) -> Any:
    """What is not true."""
    found = wrap(torch.logical_not(x))
    return found if out is None else rebind(out, found)


@op
def bitwise_not(x: Any, out: Any = None, name: str | None = None) -> Any:
    """Every bit the other way."""
    return torch.bitwise_not(x)


@op
def equal_all(x: Any, y: Any, name: str | None = None) -> Any:
    """Whether all numbers of two tensors agree."""
    if tuple(x.size()) != tuple(y.size()):
        return torch.zeros(1, dtype=torch.bool)
    return at_least_1d(torch.all(torch.eq(x, y)))


@op
def allclose(
    x: Any,
    y: Any,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
    name: str | None = None,
) -> Any:
    """Whether all numbers of two tensors are near."""
    return at_least_1d(torch.all(torch.isclose(x, y, rtol, atol, equal_nan)))


@op
def isclose(
    x: Any,
    y: Any,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
    name: str | None = None,
) -> Any:
    """Which numbers of two tensors are near."""
    return torch.isclose(x, y, rtol, atol, equal_nan)


@op
def is_empty(x: Any, name: str | None = None) -> Any:
    """Whether there are no numbers."""
    return torch.tensor([x.numel() == 0])


def is_tensor(x: Any) -> bool:
    """Whether it is a tensor."""
    return isinstance(x, torch.Tensor)

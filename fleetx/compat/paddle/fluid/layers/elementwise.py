"""Operators of ``paddle.fluid.layers`` on two tensors, number by number."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fleetx.compat.paddle.fluid.layers.common import activated, named
from fleetx.compat.recorded import agreed, rebind


def placed(x: Any, y: Any, axis: int) -> Any:
    """The second tensor with dimensions of one behind it, so that it meets ``x`` from ``axis``."""
    if axis == -1 or not isinstance(y, Tensor) or x.dim() <= y.dim():
        return y
    behind = x.dim() - axis - y.dim()
    while behind < 0 and y.shape[-1] == 1:
        y, behind = torch.squeeze(y, -1), behind + 1
    for _ in range(behind):
        y = torch.unsqueeze(y, -1)
    return y


def _binary(func: Callable[..., Any], doc: str) -> Callable[..., Any]:
    def call(
        x: Any, y: Any, axis: int = -1, act: str | None = None, name: str | None = None
    ) -> Any:
        if isinstance(y, Tensor) and x.dim() < y.dim():
            x = placed(y, x, axis)
        found = func(x, agreed(x, placed(x, y, axis)))
        return named(activated(found, act), name, steps=1 if act is None else 2)

    call.__doc__ = doc
    return call


def _divided(x: Any, y: Any) -> Any:
    whole = not torch.is_floating_point(x)
    return torch.div(x, y, rounding_mode="trunc") if whole else torch.div(x, y)


def _tensor(func: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: func(x, y if isinstance(y, Tensor) else torch.full_like(x, y))


elementwise_add = _binary(torch.add, "x + y.")
elementwise_sub = _binary(torch.sub, "x - y.")
elementwise_mul = _binary(torch.mul, "x times y.")
elementwise_div = _binary(_divided, "x over y.")
elementwise_max = _binary(_tensor(torch.maximum), "The larger one.")
elementwise_min = _binary(_tensor(torch.minimum), "The smaller one.")
elementwise_pow = _binary(torch.pow, "x to the power of y.")
elementwise_mod = _binary(torch.remainder, "What is left when x is divided by y.")
elementwise_floordiv = _binary(torch.floor_divide, "Whole times that y goes into x.")


def _logical(func: Callable[..., Any], doc: str) -> Callable[..., Any]:
    def call(x: Any, y: Any, out: Any = None, name: str | None = None) -> Any:
        found = func(x, agreed(x, y))
        return named(found, name) if out is None else rebind(out, found)

    call.__doc__ = doc
    return call


logical_and = _logical(torch.logical_and, "Both are true.")
logical_or = _logical(torch.logical_or, "One is true.")
logical_xor = _logical(torch.logical_xor, "Exactly one is true.")


def logical_not(x: Any, out: Any = None, name: str | None = None) -> Any:
    """It is not true."""
    found = torch.logical_not(x)
    return named(found, name) if out is None else rebind(out, found)


def _compared(func: Callable[..., Any], doc: str) -> Callable[..., Any]:
    def call(
        x: Any, y: Any, force_cpu: Any = None, cond: Any = None, name: str | None = None
    ) -> Any:
        if isinstance(force_cpu, Tensor):  # equal(x, y, cond) has no force_cpu
            cond = force_cpu
        found = func(x, agreed(x, y))
        return named(found, name) if cond is None else rebind(cond, found)

    call.__doc__ = doc
    return call


less_than = _compared(torch.lt, "x < y.")
less_equal = _compared(torch.le, "x <= y.")
greater_than = _compared(torch.gt, "x > y.")
greater_equal = _compared(torch.ge, "x >= y.")
equal = _compared(torch.eq, "x and y are equal.")
not_equal = _compared(torch.ne, "x and y differ.")

"""``paddle.fluid.layers.ops``: functions of single numbers."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat.dtypes import dtype_of
from fleetx.compat.fills import generator
from fleetx.compat.paddle.fluid.layers.common import named
from fleetx.compat.recorded import made, settle, sizes_of


def _unary(func: Callable[..., Any], doc: str) -> Callable[..., Any]:
    def call(x: Any, name: str | None = None) -> Any:
        return named(func(x), name)

    call.__doc__ = doc
    return call


exp = _unary(torch.exp, "e to the power of x.")
tanh = _unary(torch.tanh, "The hyperbolic tangent.")
atan = _unary(torch.atan, "The angle of a tangent.")
sqrt = _unary(torch.sqrt, "The root.")
rsqrt = _unary(torch.rsqrt, "One over the root.")
abs = _unary(torch.abs, "Without the sign.")
ceil = _unary(torch.ceil, "The next whole number above.")
floor = _unary(torch.floor, "The next whole number below.")
cos = _unary(torch.cos, "The cosine.")
acos = _unary(torch.acos, "The angle of a cosine.")
asin = _unary(torch.asin, "The angle of a sine.")
sin = _unary(torch.sin, "The sine.")
sinh = _unary(torch.sinh, "The hyperbolic sine.")
cosh = _unary(torch.cosh, "The hyperbolic cosine.")
round = _unary(torch.round, "The nearest whole number.")
reciprocal = _unary(torch.reciprocal, "One over x.")
square = _unary(torch.square, "x times x.")
softplus = _unary(F.softplus, "The logarithm of 1 + e to the power of x.")
softsign = _unary(F.softsign, "x over 1 + |x|.")
sigmoid = _unary(torch.sigmoid, "One over 1 + e to the power of -x.")
logsigmoid = _unary(F.logsigmoid, "The logarithm of the sigmoid.")
tanh_shrink = _unary(F.tanhshrink, "x minus its hyperbolic tangent.")
erf = _unary(torch.erf, "The error function.")
log = _unary(torch.log, "The natural logarithm.")
log2 = _unary(torch.log2, "The logarithm to base 2.")
log10 = _unary(torch.log10, "The logarithm to base 10.")
log1p = _unary(torch.log1p, "The logarithm of 1 + x.")
sign = _unary(torch.sign, "-1, 0 or 1.")


def gelu(x: Any, approximate: bool = False) -> Any:
    """X times the share of a normal distribution below it."""
    return F.gelu(x, approximate="tanh" if approximate else "none")


def softshrink(x: Any, alpha: float = 0.5) -> Any:
    """Nearer to zero by alpha."""
    return F.softshrink(x, alpha)


def hard_shrink(x: Any, threshold: float = 0.5) -> Any:
    """Zero within the threshold."""
    return F.hardshrink(x, threshold)


def thresholded_relu(x: Any, threshold: float = 1.0) -> Any:
    """Zero up to the threshold."""
    return F.threshold(x, threshold, 0.0)


def cumsum(x: Any, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> Any:
    """Sums of what comes before, with or without the number itself."""
    given = torch.flip(x, (axis,)) if reverse else x
    found = torch.cumsum(given, axis)
    found = found - given if exclusive else found
    return torch.flip(found, (axis,)) if reverse else found


def uniform_random(
    shape: Any, dtype: Any = "float32", min: float = -1.0, max: float = 1.0, seed: int = 0
) -> Any:
    """Numbers drawn evenly."""
    settle()
    drawn = made(torch.rand, sizes_of(shape), dtype=dtype_of(dtype), **_seeded(seed))
    return drawn * (max - min) + min


def gaussian_random(
    shape: Any, mean: float = 0.0, std: float = 1.0, seed: int = 0, dtype: Any = "float32"
) -> Any:
    """Numbers drawn from a normal distribution."""
    settle()
    return made(torch.randn, sizes_of(shape), dtype=dtype_of(dtype), **_seeded(seed)) * std + mean


def _seeded(seed: int) -> dict[str, Any]:
    found = generator(seed)
    return {} if found is None else {"generator": found}

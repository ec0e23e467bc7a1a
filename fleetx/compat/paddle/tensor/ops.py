"""``paddle.tensor.ops``: functions of numbers that few scripts use."""

# Positions are those of Paddle.

import importlib
from collections.abc import Callable
from typing import Any

import torch

from fleetx.compat.dtypes import dtype_of
from fleetx.compat.paddle.tensor.math import _one, _over, _two, axes_of
from fleetx.compat.tables import HERE
from fleetx.compat.tensors import at_least_1d, op, wrap

acosh = _one("acosh", torch.acosh)
asinh = _one("asinh", torch.asinh)
atanh = _one("atanh", torch.atanh)
angle = _one("angle", torch.angle)
conj = _one("conj", torch.conj_physical)
digamma = _one("digamma", torch.digamma)
erfinv = _one("erfinv", torch.erfinv)
frac = _one("frac", torch.frac)
i0 = _one("i0", torch.special.i0)
i0e = _one("i0e", torch.special.i0e)
i1 = _one("i1", torch.special.i1)
i1e = _one("i1e", torch.special.i1e)
lgamma = _one("lgamma", torch.lgamma)
deg2rad = _one("deg2rad", torch.deg2rad)
rad2deg = _one("rad2deg", torch.rad2deg)
sgn = _one("sgn", torch.sgn)

gcd = _two("gcd", torch.gcd)
heaviside = _two("heaviside", torch.heaviside)
hypot = _two("hypot", torch.hypot)
lcm = _two("lcm", torch.lcm)
ldexp = _two("ldexp", torch.ldexp)
logaddexp = _two("logaddexp", torch.logaddexp)
nextafter = _two("nextafter", torch.nextafter)


@op
def frexp(x: Any, name: str | None = None) -> Any:
    """Mantissas and exponents, both as floats."""
    mantissa, exponent = torch.frexp(x)
    return mantissa, exponent.to(x.dtype)


@op
def logit(x: Any, eps: float | None = None, name: str | None = None) -> Any:
    """The inverse of the sigmoid."""
    return torch.logit(x, eps)


@op
def polygamma(x: Any, n: int, name: str | None = None) -> Any:
    """The derivative of that order of digamma."""
    return torch.polygamma(n, x)


@op
def multigammaln(x: Any, p: int, name: str | None = None) -> Any:
    """The logarithm of the gamma function of several dimensions."""
    return torch.special.multigammaln(x, p)


@op
def logcumsumexp(x: Any, axis: Any = None, dtype: Any = None, name: str | None = None) -> Any:
    """The logarithm of the sum of exponentials of all so far."""
    x = x if dtype is None else torch.Tensor.to(x, dtype_of(dtype))
    x = torch.reshape(x, (-1,)) if axis is None else x
    return torch.logcumsumexp(x, axis or 0)


@op
def nan_to_num(
    x: Any, nan: float = 0.0, posinf: Any = None, neginf: Any = None, name: str | None = None
) -> Any:
    """Numbers where there were none."""
    return torch.nan_to_num(x, nan, posinf, neginf)


@op
def nansum(
    x: Any, axis: Any = None, dtype: Any = None, keepdim: bool = False, name: str | None = None
) -> Any:
    """The sum of what is a number."""
    x = torch.where(torch.isnan(x), torch.zeros_like(x), x)
    options = {} if dtype is None else {"dtype": dtype_of(dtype)}
    return _over(torch.sum, x, axis, keepdim, **options)


@op
def nanmean(x: Any, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Any:
    """The mean of what is a number."""
    return _over(torch.nanmean, x, axis, keepdim)


@op
def nanmedian(x: Any, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Any:
    """The number in the middle of those that are numbers."""
    return _middle(torch.nanquantile, x, 0.5, axis, keepdim).to(x.dtype)


@op
def quantile(x: Any, q: Any, axis: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    """The number below which that share of the others is."""
    return _middle(torch.quantile, x, q, axis, keepdim, **kwargs)


@op
def nanquantile(x: Any, q: Any, axis: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    """The same, of what is a number."""
    return _middle(torch.nanquantile, x, q, axis, keepdim, **kwargs)


def _middle(
    function: Callable[..., Any], x: Any, q: Any, axis: Any, keepdim: bool, **o: Any
) -> Any:
    x = x.to(torch.float64)
    shares = torch.tensor(q, dtype=x.dtype) if isinstance(q, (list, tuple)) else q
    axes = axes_of(axis)
    if not isinstance(axes, tuple):
        return at_least_1d(function(x, shares, dim=axes, keepdim=keepdim, **o))
    kept = [at for at in range(x.dim()) if at not in {a % x.dim() for a in axes}]
    moved = torch.permute(x, [*kept, *(a % x.dim() for a in axes)])
    flat = torch.flatten(moved, len(kept))
    found = function(flat, shares, dim=-1, **o)
    if keepdim:
        several = found.dim() - len(kept)  # one more axis in front, for several shares
        for at in sorted(a % x.dim() for a in axes):
            found = torch.unsqueeze(found, at + several)
    return at_least_1d(found)


@op
def cummax(x: Any, axis: Any = None, dtype: Any = "int64", name: str | None = None) -> Any:
    """The largest so far, and where it is."""
    x = torch.reshape(x, (-1,)) if axis is None else x
    values, indices = torch.cummax(x, axis or 0)
    return values, indices.to(dtype_of(dtype))


@op
def cummin(x: Any, axis: Any = None, dtype: Any = "int64", name: str | None = None) -> Any:
    """The smallest so far, and where it is."""
    x = torch.reshape(x, (-1,)) if axis is None else x
    values, indices = torch.cummin(x, axis or 0)
    return values, indices.to(dtype_of(dtype))


@op
def trapezoid(
    y: Any, x: Any = None, dx: float | None = None, axis: int = -1, name: str | None = None
) -> Any:
    """The area below a line through points."""
    return at_least_1d(
        torch.trapezoid(y, dx=dx or 1.0, dim=axis) if x is None else torch.trapezoid(y, x, dim=axis)
    )


@op
def cumulative_trapezoid(
    y: Any, x: Any = None, dx: float | None = None, axis: int = -1, name: str | None = None
) -> Any:
    """The area so far."""
    if x is None:
        return torch.cumulative_trapezoid(y, dx=dx or 1.0, dim=axis)
    return torch.cumulative_trapezoid(y, x, dim=axis)


@op
def renorm(x: Any, p: float, axis: int, max_norm: float) -> Any:
    """Parts along an axis whose norm is no larger."""
    return torch.renorm(x, p, axis, max_norm)


@op
def vander(x: Any, n: int | None = None, increasing: bool = False, name: str | None = None) -> Any:
    """Powers of numbers, as a matrix."""
    return torch.vander(x, n, increasing)


@op
def combinations(
    x: Any, r: int = 2, with_replacement: bool = False, name: str | None = None
) -> Any:
    """All choices of so many."""
    return torch.combinations(x, r, with_replacement)


@op
def take(x: Any, index: Any, mode: str = "raise", name: str | None = None) -> Any:
    """Numbers by their place in all of them."""
    count = x.numel()
    if mode == "wrap":
        index = torch.remainder(index, count)
    elif mode == "clip":
        index = torch.clamp(index, 0, count - 1)
    return torch.take(x, index.to(torch.int64))


@op
def complex(real: Any, imag: Any, name: str | None = None) -> Any:
    """Complex numbers out of their parts."""
    return torch.complex(*torch.broadcast_tensors(real, imag))


@op
def polar(abs: Any, angle: Any, name: str | None = None) -> Any:
    """Complex numbers out of their sizes and angles."""
    return torch.polar(*torch.broadcast_tensors(abs, angle))


@op
def as_complex(x: Any, name: str | None = None) -> Any:
    """Pairs of numbers as complex ones."""
    return torch.view_as_complex(x.contiguous())


@op
def as_real(x: Any, name: str | None = None) -> Any:
    """Complex numbers as pairs."""
    return torch.view_as_real(x)


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that writes what it finds into its first argument."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        moves = x.requires_grad and torch.is_grad_enabled()
        found = function(torch.clone(x) if moves else x, *args, **kwargs)
        with torch.set_grad_enabled(moves):
            return wrap(torch.Tensor.copy_(x, found))

    call.__name__ = f"{function.__name__}_"
    call.__doc__ = f"{function.__name__}, in place."
    return call


def written(name: str) -> Callable[..., Any]:
    """The version in place of a function of this or another module."""
    for module in ("ops", "math", "logic", "manipulation", "pieces", "search", "creation"):
        found = getattr(importlib.import_module(f"{HERE}paddle.tensor.{module}"), name, None)
        if found is not None:
            return _in_place(found)
    raise AttributeError(name)


_LISTED = (
    "abs acos acosh addmm asin asinh atan atanh ceil cos cosh cumprod cumsum digamma divide erf "
    "erfinv exp expm1 floor floor_divide floor_mod frac gcd hypot i0 lcm ldexp lerp lgamma log "
    "log10 log1p log2 logit masked_fill mod multigammaln nan_to_num neg polygamma pow reciprocal "
    "remainder renorm round rsqrt sigmoid sin sinh sqrt square tan tanh tril triu trunc "
    "equal not_equal "
    "greater_equal greater_than less_equal less_than logical_and logical_or logical_xor "
    "logical_not bitwise_and bitwise_or bitwise_xor bitwise_not put_along_axis index_add "
    "index_fill index_put"
)
IN_PLACE = frozenset(_LISTED.split())
"""Functions that have a version with ``_`` behind its name."""


def __getattr__(name: str) -> Any:
    if name.endswith("_") and name[:-1] in IN_PLACE:
        made = written(name[:-1])
        globals()[name] = made
        return made
    raise AttributeError(name)

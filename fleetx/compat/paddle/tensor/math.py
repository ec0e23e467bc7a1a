"""``paddle.tensor.math``: numbers of tensors, and sums over them."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from collections.abc import Callable
from typing import Any

import torch

from fleetx.compat.dtypes import dtype_of
from fleetx.compat.paddle.tensor.creation import numel, to_tensor, tril, triu
from fleetx.compat.recorded import agreed, rebind
from fleetx.compat.tensors import at_least_1d, op, wrap
from fleetx.record.variable import Variable

__all__ = ["numel", "tril", "triu"]


def _two(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of two tensors."""

    def call(x: Any, y: Any, name: str | None = None) -> Any:
        return wrap(function(x, agreed(x, y)))

    call.__name__, call.__doc__ = name, f"{name} of two tensors, number by number."
    return call


def _one(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of each number."""

    def call(x: Any, name: str | None = None) -> Any:
        return wrap(function(x))

    call.__name__, call.__doc__ = name, f"{name} of each number."
    return call


add = _two("add", torch.add)
subtract = _two("subtract", torch.sub)
multiply = _two("multiply", torch.mul)
divide = _two("divide", torch.div)
mod = remainder = floor_mod = _two("remainder", torch.remainder)
floor_divide = _two("floor_divide", torch.floor_divide)
maximum = _two("maximum", torch.maximum)
minimum = _two("minimum", torch.minimum)
fmax = _two("fmax", torch.fmax)
fmin = _two("fmin", torch.fmin)
atan2 = _two("atan2", torch.atan2)
kron = _two("kron", torch.kron)
inner = _two("inner", torch.inner)
outer = _two("outer", torch.outer)
pow = _two("pow", torch.pow)

exp = _one("exp", torch.exp)
expm1 = _one("expm1", torch.expm1)
log = _one("log", torch.log)
log2 = _one("log2", torch.log2)
log10 = _one("log10", torch.log10)
log1p = _one("log1p", torch.log1p)
sqrt = _one("sqrt", torch.sqrt)
rsqrt = _one("rsqrt", torch.rsqrt)
square = _one("square", torch.square)
abs = _one("abs", torch.abs)
sign = _one("sign", torch.sign)
ceil = _one("ceil", torch.ceil)
floor = _one("floor", torch.floor)
round = _one("round", lambda x: torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x)))
trunc = _one("trunc", torch.trunc)
sin = _one("sin", torch.sin)
cos = _one("cos", torch.cos)
tan = _one("tan", torch.tan)
asin = _one("asin", torch.asin)
acos = _one("acos", torch.acos)
atan = _one("atan", torch.atan)
sinh = _one("sinh", torch.sinh)
cosh = _one("cosh", torch.cosh)
tanh = _one("tanh", torch.tanh)
sigmoid = _one("sigmoid", torch.sigmoid)
reciprocal = _one("reciprocal", torch.reciprocal)
erf = _one("erf", torch.erf)
neg = _one("neg", torch.neg)
isfinite = _one("isfinite", torch.isfinite)
isnan = _one("isnan", torch.isnan)
isinf = _one("isinf", torch.isinf)


def axes_of(axis: Any) -> Any:
    """Axes as torch takes them; None and [] are all."""
    if isinstance(axis, torch.Tensor):
        axis = axis.tolist()
    if isinstance(axis, (list, tuple)):
        return tuple(int(a) for a in axis) or None
    return axis


def _over(
    function: Callable[..., Any], x: Any, axis: Any, keepdim: bool, **options: Any
) -> torch.Tensor:
    """A function over axes, or over everything, which has the shape [1]."""
    axes = axes_of(axis)
    if axes is not None:
        return at_least_1d(function(x, dim=axes, keepdim=keepdim, **options))
    if keepdim:
        found = function(torch.reshape(x, (-1,)), dim=0, **options)
        return torch.reshape(found, [1] * max_of(x.dim(), 1))
    return torch.reshape(function(torch.reshape(x, (-1,)), dim=0, **options), (1,))


def max_of(*numbers: int) -> int:
    """The largest of Python's numbers."""
    return sorted(numbers)[-1]


@op
def sum(
    x: Any, axis: Any = None, dtype: Any = None, keepdim: bool = False, name: str | None = None
) -> Any:
    """The sum over axes, or of everything."""
    options = {} if dtype is None else {"dtype": dtype_of(dtype)}
    return _over(torch.sum, x, axis, keepdim, **options)


@op
def mean(x: Any, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Any:
    """The mean over axes, or of everything."""
    return _over(torch.mean, x, axis, keepdim)


@op
def max(x: Any, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Any:
    """The largest over axes, or of everything."""
    if isinstance(axis, torch.Tensor):
        return torch.maximum(x, axis)  # torch's meaning of a second tensor
    return _over(torch.amax, x, axis, keepdim)


@op
def min(x: Any, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Any:
    """The smallest over axes, or of everything."""
    if isinstance(axis, torch.Tensor):
        return torch.minimum(x, axis)
    return _over(torch.amin, x, axis, keepdim)


amax, amin = max, min


@op
def prod(
    x: Any, axis: Any = None, keepdim: bool = False, dtype: Any = None, name: str | None = None
) -> Any:
    """The product over axes, or of everything."""
    x = x if dtype is None else torch.Tensor.to(x, dtype_of(dtype))
    axes = axes_of(axis)
    if not isinstance(axes, tuple):
        return _over(torch.prod, x, axes, keepdim)
    for at in sorted((a % x.dim() for a in axes), reverse=True):
        x = torch.prod(x, dim=at, keepdim=keepdim)
    return at_least_1d(x)


@op
def any(x: Any, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Any:
    """Whether one is true."""
    return _over(torch.any, x, axis, keepdim)


@op
def all(x: Any, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Any:
    """Whether all are true."""
    return _over(torch.all, x, axis, keepdim)


@op
def logsumexp(x: Any, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Any:
    """The logarithm of the sum of exponentials."""
    return _over(torch.logsumexp, x, axis, keepdim)


@op
def std(
    x: Any, axis: Any = None, unbiased: bool = True, keepdim: bool = False, name: str | None = None
) -> Any:
    """The standard deviation."""
    return _over(torch.std, x, axis, keepdim, correction=int(unbiased))


@op
def var(
    x: Any, axis: Any = None, unbiased: bool = True, keepdim: bool = False, name: str | None = None
) -> Any:
    """The variance."""
    return _over(torch.var, x, axis, keepdim, correction=int(unbiased))


@op
def median(x: Any, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Any:
    """The number in the middle, or the mean of the two there."""
    x = x if x.dtype == torch.float64 else x.to(torch.float32)
    return _over(lambda x, dim, **o: torch.quantile(x, 0.5, dim=dim, **o), x, axis, keepdim)


@op
def count_nonzero(x: Any, axis: Any = None, keepdim: bool = False, name: str | None = None) -> Any:
    """How many are not zero."""
    return _over(torch.sum, (x != 0).to(torch.int64), axis, keepdim)


@op
def cumsum(x: Any, axis: Any = None, dtype: Any = None, name: str | None = None) -> Any:
    """Sums of all so far, along an axis or through everything."""
    x = torch.reshape(x, (-1,)) if axis is None else x
    return torch.cumsum(x, axis or 0, dtype=None if dtype is None else dtype_of(dtype))


@op
def cumprod(x: Any, dim: Any = None, dtype: Any = None, name: str | None = None) -> Any:
    """Products of all so far."""
    x = torch.reshape(x, (-1,)) if dim is None else x
    return torch.cumprod(x, dim or 0, dtype=None if dtype is None else dtype_of(dtype))


@op
def clip(x: Any, min: Any = None, max: Any = None, name: str | None = None) -> Any:
    """Numbers within bounds."""
    return torch.clamp(x, min, max)


def clip_(x: Any, min: Any = None, max: Any = None, name: str | None = None) -> Any:
    """The same, in place."""
    return torch.clamp_(x, min, max)


def add_(x: Any, y: Any, name: str | None = None) -> Any:
    """Add in place."""
    return torch.Tensor.add_(x, y)


def subtract_(x: Any, y: Any, name: str | None = None) -> Any:
    """Subtract in place."""
    return torch.Tensor.sub_(x, y)


def multiply_(x: Any, y: Any, name: str | None = None) -> Any:
    """Multiply in place."""
    return torch.Tensor.mul_(x, y)


@op
def scale(
    x: Any,
    scale: Any = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: str | None = None,
    name: str | None = None,
) -> Any:
    """``x * scale + bias``, or ``(x + bias) * scale``."""
    factor = scale if x.is_floating_point() or isinstance(scale, torch.Tensor) else int(scale)
    shift = bias if x.is_floating_point() else int(bias)
    found = x * factor + shift if bias_after_scale else (x + shift) * factor
    return found if act is None else getattr(torch, act)(found)


def scale_(x: Any, scale: Any = 1.0, bias: float = 0.0, name: str | None = None) -> Any:
    """The same, in place."""
    return torch.Tensor.copy_(x, x * scale + bias)


@op
def stanh(x: Any, scale_a: float = 0.67, scale_b: float = 1.7159, name: str | None = None) -> Any:
    """``scale_b * tanh(scale_a * x)``."""
    return scale_b * torch.tanh(scale_a * x)


@op
def add_n(inputs: Any, name: str | None = None) -> Any:
    """The sum of several tensors."""
    given = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    found = given[0]
    for other in given[1:]:
        found = torch.add(found, other)
    return found if len(given) > 1 else torch.clone(found)


@op
def increment(x: Any, value: float = 1.0, name: str | None = None) -> Any:
    """One number, counted up in place."""
    if isinstance(x, Variable):
        return rebind(x, x + value)
    with torch.no_grad():
        return torch.Tensor.add_(x, value)


@op
def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, name: str | None = None) -> Any:
    """The sum of a diagonal."""
    return at_least_1d(torch.sum(torch.diagonal(x, offset, axis1, axis2), -1))


@op
def addmm(
    input: Any, x: Any, y: Any, beta: float = 1.0, alpha: float = 1.0, name: str | None = None
) -> Any:
    """``beta * input + alpha * x @ y``."""
    return torch.addmm(input, x, y, beta=beta, alpha=alpha)


@op
def lerp(x: Any, y: Any, weight: Any, name: str | None = None) -> Any:
    """Between two tensors."""
    return torch.lerp(x, y, weight)


@op
def diff(
    x: Any,
    n: int = 1,
    axis: int = -1,
    prepend: Any = None,
    append: Any = None,
    name: str | None = None,
) -> Any:
    """Differences of neighbours."""
    return torch.diff(x, n, axis, prepend, append)


@op
def multiplex(inputs: Any, index: Any, name: str | None = None) -> Any:
    """Row i of the tensor that ``index`` names for it."""
    which = torch.reshape(index, (-1,)).to(torch.int64)
    rows = to_tensor(list(range(which.size(0))))
    return torch.Tensor.__getitem__(torch.stack(list(inputs)), (which, rows))

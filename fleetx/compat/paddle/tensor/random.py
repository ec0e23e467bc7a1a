"""``paddle.tensor.random``: numbers that are drawn."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

import torch

from fleetx.compat.default_dtype import get_default_dtype
from fleetx.compat.dtypes import dtype_of
from fleetx.compat.paddle.tensor.creation import made
from fleetx.compat.recorded import sizes_of
from fleetx.compat.tensors import op, wrap


def _format(dtype: Any) -> torch.dtype:
    return dtype_of(get_default_dtype() if dtype is None else dtype)


def rand(shape: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Between 0 and 1."""
    return made(torch.rand, sizes_of(shape), dtype=_format(dtype))


def randn(shape: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Of the normal distribution."""
    return made(torch.randn, sizes_of(shape), dtype=_format(dtype))


standard_normal = randn


def uniform(
    shape: Any,
    dtype: Any = None,
    min: Any = -1.0,
    max: Any = 1.0,
    seed: int = 0,
    name: str | None = None,
) -> Any:
    """Between two bounds."""
    return rand(shape, dtype) * (max - min) + min


def normal(mean: Any = 0.0, std: Any = 1.0, shape: Any = None, name: str | None = None) -> Any:
    """Of a normal distribution, or of one for each number of ``mean`` or ``std``."""
    given = next((v for v in (mean, std) if isinstance(v, torch.Tensor)), None)
    if given is not None:
        return wrap(torch.randn_like(given) * std + mean)
    return randn([1] if shape is None else shape) * std + mean


def gaussian(
    shape: Any, mean: float = 0.0, std: float = 1.0, seed: int = 0, dtype: Any = None
) -> Any:
    """Of a normal distribution."""
    return randn(shape, dtype) * std + mean


def randint(
    low: int = 0, high: int | None = None, shape: Any = (1,), dtype: Any = None, name: Any = None
) -> Any:
    """Whole numbers from ``low`` on, below ``high``; below ``low`` where there is no other."""
    if high is None:
        low, high = 0, low
    return made(torch.randint, low, high, sizes_of(shape), dtype=dtype_of(dtype or "int64"))


@op
def randint_like(
    x: Any, low: int = 0, high: int | None = None, dtype: Any = None, name: Any = None
) -> Any:
    """Whole numbers in the shape of another tensor."""
    found = randint(low, high, x.size())
    return torch.Tensor.to(found, dtype_of(dtype if dtype is not None else x.dtype))


def randperm(n: int, dtype: Any = "int64", name: str | None = None) -> Any:
    """The numbers below n in any order."""
    return made(torch.randperm, n, dtype=dtype_of(dtype))


@op
def multinomial(
    x: Any, num_samples: int = 1, replacement: bool = False, name: str | None = None
) -> Any:
    """Places, drawn by their weights."""
    return torch.multinomial(x, num_samples, replacement)


@op
def bernoulli(x: Any, name: str | None = None) -> Any:
    """1 with these probabilities."""
    return torch.bernoulli(x)


@op
def poisson(x: Any, name: str | None = None) -> Any:
    """Of Poisson distributions."""
    return torch.poisson(x)


def uniform_(x: Any, min: float = -1.0, max: float = 1.0, seed: int = 0) -> Any:
    """Drawn into a tensor, between two bounds."""
    return torch.Tensor.uniform_(x, min, max)


def normal_(x: Any, mean: float = 0.0, std: float = 1.0) -> Any:
    """Drawn into a tensor, of a normal distribution."""
    return torch.Tensor.normal_(x, mean, std)


def exponential_(x: Any, lam: float = 1.0) -> Any:
    """Drawn into a tensor, of an exponential distribution."""
    return torch.Tensor.exponential_(x, lam)


def seed(seed: int) -> "Generator":
    """Begin drawing at a number, on every device."""
    return Generator(torch.manual_seed(int(seed)))


class Generator:
    """What ``paddle.seed`` returns: it can begin again."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def manual_seed(self, seed: int) -> "Generator":
        """Begin drawing at a number."""
        torch.manual_seed(int(seed))
        return self

    def initial_seed(self) -> int:
        """Where drawing began."""
        return self._generator.initial_seed()

    def get_state(self) -> Any:
        """Where drawing is."""
        return self._generator.get_state()

    def set_state(self, state: Any) -> None:
        """Draw on from there."""
        self._generator.set_state(state)

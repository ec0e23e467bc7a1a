"""``paddle.distribution``, over ``torch.distributions``."""

from typing import Any

import torch
from torch import distributions as known
from typing_extensions import override

from fleetx.compat.paddle.device import current_device
from fleetx.compat.paddle.tensor.creation import to_tensor
from fleetx.compat.plain import plain
from fleetx.compat.tensors import wrap

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "Dirichlet",
    "Distribution",
    "Gumbel",
    "Laplace",
    "LogNormal",
    "Normal",
    "Uniform",
    "kl_divergence",
]


def _number(value: Any) -> torch.Tensor:
    """A parameter of a distribution as a tensor of torch."""
    if isinstance(value, int | float):
        return torch.tensor(float(value), device=current_device())
    given = value if isinstance(value, torch.Tensor) else to_tensor(value, dtype="float32")
    found: torch.Tensor = plain(given)
    return found


class Distribution:
    """Draws, densities and distances, in Paddle's words."""

    _made: known.Distribution

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """How many distributions there are."""
        return tuple(self._made.batch_shape)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one draw."""
        return tuple(self._made.event_shape)

    @property
    def mean(self) -> Any:
        """The mean."""
        return wrap(self._made.mean)

    @property
    def variance(self) -> Any:
        """The variance."""
        return wrap(self._made.variance)

    def sample(self, shape: Any = (), seed: int = 0) -> Any:
        """Draws of a shape, without gradients."""
        return wrap(self._made.sample(torch.Size(shape)))

    def rsample(self, shape: Any = ()) -> Any:
        """Draws through which gradients flow."""
        return wrap(self._made.rsample(torch.Size(shape)))

    def log_prob(self, value: Any) -> Any:
        """The logarithm of the density."""
        return wrap(self._made.log_prob(_number(value)))

    def probs(self, value: Any) -> Any:
        """The density."""
        return wrap(torch.exp(self._made.log_prob(_number(value))))

    prob = probs

    def entropy(self) -> Any:
        """The entropy."""
        return wrap(self._made.entropy())

    def kl_divergence(self, other: "Distribution") -> Any:
        """How far another distribution is."""
        return wrap(known.kl_divergence(self._made, other._made))


def kl_divergence(p: Distribution, q: Distribution) -> Any:
    """How far the second distribution is from the first."""
    return p.kl_divergence(q)


class Normal(Distribution):
    """The normal distribution."""

    def __init__(self, loc: Any, scale: Any, name: str | None = None) -> None:
        self.loc, self.scale = _number(loc), _number(scale)
        self._made = known.Normal(self.loc, self.scale, validate_args=False)


class LogNormal(Distribution):
    """Numbers whose logarithms are normal."""

    def __init__(self, loc: Any, scale: Any) -> None:
        self.loc, self.scale = _number(loc), _number(scale)
        self._made = known.LogNormal(self.loc, self.scale, validate_args=False)


class Uniform(Distribution):
    """Evenly between two bounds."""

    def __init__(self, low: Any, high: Any, name: str | None = None) -> None:
        self.low, self.high = _number(low), _number(high)
        self._made = known.Uniform(self.low, self.high, validate_args=False)


class Laplace(Distribution):
    """The distribution of Laplace."""

    def __init__(self, loc: Any, scale: Any) -> None:
        self.loc, self.scale = _number(loc), _number(scale)
        self._made = known.Laplace(self.loc, self.scale, validate_args=False)


class Gumbel(Distribution):
    """The distribution of Gumbel."""

    def __init__(self, loc: Any, scale: Any) -> None:
        self.loc, self.scale = _number(loc), _number(scale)
        self._made = known.Gumbel(self.loc, self.scale, validate_args=False)


class Bernoulli(Distribution):
    """1 with a probability, else 0."""

    def __init__(self, probs: Any, name: str | None = None) -> None:
        self._made = known.Bernoulli(probs=_number(probs), validate_args=False)


class Beta(Distribution):
    """The beta distribution."""

    def __init__(self, alpha: Any, beta: Any) -> None:
        self.alpha, self.beta = _number(alpha), _number(beta)
        self._made = known.Beta(self.alpha, self.beta, validate_args=False)


class Dirichlet(Distribution):
    """The distribution of Dirichlet."""

    def __init__(self, concentration: Any) -> None:
        self.concentration = _number(concentration)
        self._made = known.Dirichlet(self.concentration, validate_args=False)


class Categorical(Distribution):
    """Numbers of categories.

    As in Paddle, ``probs`` and ``log_prob`` divide the scores by their sum, while ``entropy`` and
    ``kl_divergence`` take their softmax, and draws come from the former.
    """

    def __init__(self, logits: Any, name: str | None = None) -> None:
        self.logits = _number(logits)
        self._made = known.Categorical(logits=self.logits, validate_args=False)

    @override
    def sample(self, shape: Any = (), seed: int = 0) -> Any:
        """Numbers of categories, of a shape before that of the scores."""
        weights = self.logits / self.logits.sum(-1, keepdim=True)
        drawn = known.Categorical(probs=weights, validate_args=False).sample(torch.Size(shape))
        return wrap(drawn)

    @override
    def probs(self, value: Any) -> Any:
        """The probability of categories."""
        shares = self.logits / self.logits.sum(-1, keepdim=True)
        places = plain(value).to(torch.int64)
        if shares.dim() == 1:
            return wrap(shares[places])
        if places.dim() == 1:
            places = places.expand(*shares.shape[:-1], len(places))
        return wrap(torch.gather(shares, -1, places))

    prob = probs

    @override
    def log_prob(self, value: Any) -> Any:
        """Its logarithm."""
        return wrap(torch.log(plain(self.probs(value))))

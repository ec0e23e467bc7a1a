"""How far the answers of a service are from the vectors that were computed offline."""

from dataclasses import dataclass

import numpy as np

from fleetx.evaluate.service import Array


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What still counts as agreement."""

    max_abs: float = 1e-3
    """The largest difference of one number, relative to the largest number of its vector where
    that is above one."""
    cosine: float = 0.9999
    """The smallest cosine of the two vectors of an input."""
    top_k: int = 5
    """How many of the largest entries must be the same, in any order; entries that are offline no
    farther than ``max_abs`` below the last of them are as good as it."""
    agreement: float = 1.0
    """The share of inputs for which they must be."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Numbers for each input, in the order of the list."""

    limits: Limits
    max_abs: Array
    relative: Array
    """The same, divided by the largest number of the vector where that is above one."""
    cosine: Array
    top_k: Array
    """Share of the service's largest entries that are among the largest offline."""

    @property
    def top_k_agreement(self) -> float:
        """The share of inputs whose largest entries are the same."""
        return float((self.top_k == 1).mean())

    @property
    def complaints(self) -> list[str]:
        """Why the two do not agree; empty if they do."""
        limits, found = self.limits, []
        if not np.isfinite(self.relative).all():
            found.append("some numbers are not finite")
        elif self.relative.max() > limits.max_abs:
            found.append(f"a number is {self.max_abs.max():.3g} away (max_abs {limits.max_abs:g})")
        if not self.cosine.min() >= limits.cosine:
            found.append(f"a cosine is {self.cosine.min():.6f} (at least {limits.cosine:g})")
        if self.top_k_agreement < limits.agreement:
            share = f"{self.top_k_agreement:.2%}"
            found.append(f"the top {limits.top_k} agree for {share} of the inputs only")
        return found

    def worst(self, count: int) -> list[int]:
        """The inputs that are farthest apart, the farthest first."""
        distance = np.where(np.isfinite(self.relative), self.relative, np.inf)
        return [int(at) for at in np.argsort(-distance, kind="stable")[:count]]


def compare(offline: Array, online: Array, limits: Limits) -> Comparison:
    """Hold two vectors of each input against each other."""
    if offline.shape != online.shape:
        raise ValueError(
            f"the service answers vectors of {online.shape[1]} numbers, and the file has "
            f"{offline.shape[1]}: they are not of the same model."
        )
    difference = np.abs(offline.astype(np.float64) - online).max(axis=1)
    largest = np.maximum(np.abs(offline).max(axis=1), 1.0)
    return Comparison(
        limits=limits,
        max_abs=difference.astype(np.float32),
        relative=(difference / largest).astype(np.float32),
        cosine=_cosine(offline, online),
        top_k=_shared(offline, online, limits, largest),
    )


def _cosine(one: Array, other: Array) -> Array:
    a, b = one.astype(np.float64), other.astype(np.float64)
    both_zero = (a == 0).all(axis=1) & (b == 0).all(axis=1)
    with np.errstate(invalid="ignore"):  # what is not finite gives NaN, which is below any limit
        below = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosine = np.divide((a * b).sum(axis=1), below, out=np.zeros(len(a)), where=below > 0)
    return np.where(both_zero, 1.0, cosine).astype(np.float32)


def _shared(offline: Array, online: Array, limits: Limits, largest: Array) -> Array:
    """Of the service's largest entries, those that are large enough offline.

    Between entries that differ by less than a number may be off, the order says nothing.
    """
    k = min(limits.top_k, offline.shape[1])
    chosen = np.argsort(-online, axis=1, kind="stable")[:, :k]
    last = np.sort(offline, axis=1)[:, -k].astype(np.float64)
    enough = last - limits.max_abs * largest
    found: Array = (np.take_along_axis(offline, chosen, axis=1) >= enough[:, None]).mean(axis=1)
    return found.astype(np.float32)

"""What a row holds when its id is met for the first time: a function of the id alone."""

from dataclasses import dataclass

import numpy as np

from fleetx.ps.tables.hashing import uniform
from fleetx.ps.wire.arrays import Floats, Ids
from fleetx.ps.wire.plain_data import check_number


@dataclass(frozen=True)
class Uniform:
    """Numbers between ``low`` and ``high``."""

    low: float = -1e-4
    high: float = 1e-4

    def __post_init__(self) -> None:
        check_number("Uniform", "low", self.low)
        check_number("Uniform", "high", self.high)
        if self.high < self.low:
            raise ValueError(f"Uniform(low={self.low}, high={self.high}) is empty; swap them")

    def rows(self, ids: Ids, dim: int, seed: int) -> Floats:
        """The first rows of these ids."""
        spread = self.low + (self.high - self.low) * uniform(ids, dim, seed)
        return spread.astype(np.float32)


@dataclass(frozen=True)
class Normal:
    """Numbers around ``mean`` with standard deviation ``std``."""

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        check_number("Normal", "mean", self.mean)
        check_number("Normal", "std", self.std, above=-1e-300)

    def rows(self, ids: Ids, dim: int, seed: int) -> Floats:
        """The first rows of these ids."""
        draws = uniform(ids, 2 * dim, seed)
        radius = np.sqrt(-2 * np.log1p(-draws[:, :dim]))
        bell = radius * np.cos(2 * np.pi * draws[:, dim:])
        rows: Floats = (self.mean + self.std * bell).astype(np.float32)
        return rows


@dataclass(frozen=True)
class Constant:
    """The same number everywhere."""

    value: float = 0.0

    def __post_init__(self) -> None:
        check_number("Constant", "value", self.value)

    def rows(self, ids: Ids, dim: int, seed: int) -> Floats:
        """The first rows of these ids."""
        return np.full((len(ids), dim), self.value, np.float32)


Initializer = Uniform | Normal | Constant
INITIALIZERS: dict[str, type[Initializer]] = {
    "Uniform": Uniform,
    "Normal": Normal,
    "Constant": Constant,
}

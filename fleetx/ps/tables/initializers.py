"""What a row holds when its id is met for the first time: a function of the id alone."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from typing_extensions import override

from fleetx.ps.tables.hashing import uniform
from fleetx.ps.wire.arrays import Floats, Ids
from fleetx.ps.wire.plain_data import check_number


class FirstRows(ABC):
    """What rows begin with."""

    @abstractmethod
    def rows(self, ids: Ids, dim: int, seed: int) -> Floats:
        """The first rows of these ids."""

    def fill(  # noqa: PLR0917
        self, kernels: ModuleType, table: Floats, slots: Ids, ids: Ids, dim: int, seed: int
    ) -> None:
        """Write the same to rows of a table, which begin with it."""
        table[slots, :dim] = self.rows(ids, dim, seed)


@dataclass(frozen=True)
class Uniform(FirstRows):
    """Numbers between ``low`` and ``high``."""

    low: float = -1e-4
    high: float = 1e-4

    def __post_init__(self) -> None:
        check_number("Uniform", "low", self.low)
        check_number("Uniform", "high", self.high)
        if self.high < self.low:
            raise ValueError(f"Uniform(low={self.low}, high={self.high}) is empty; swap them")

    @override
    def rows(self, ids: Ids, dim: int, seed: int) -> Floats:
        spread = self.low + (self.high - self.low) * uniform(ids, dim, seed)
        return spread.astype(np.float32)

    @override
    def fill(
        self, kernels: ModuleType, table: Floats, slots: Ids, ids: Ids, dim: int, seed: int
    ) -> None:
        kernels.fill_uniform(table, slots, ids, dim, seed, self.low, self.high)


@dataclass(frozen=True)
class Normal(FirstRows):
    """Numbers around ``mean`` with standard deviation ``std``."""

    mean: float = 0.0
    std: float = 1.0

    def __post_init__(self) -> None:
        check_number("Normal", "mean", self.mean)
        check_number("Normal", "std", self.std, above=-1e-300)

    @override
    def rows(self, ids: Ids, dim: int, seed: int) -> Floats:
        draws = uniform(ids, 2 * dim, seed)
        radius = np.sqrt(-2 * np.log1p(-draws[:, :dim]))
        bell = radius * np.cos(2 * np.pi * draws[:, dim:])
        rows: Floats = (self.mean + self.std * bell).astype(np.float32)
        return rows


@dataclass(frozen=True)
class Constant(FirstRows):
    """The same number everywhere."""

    value: float = 0.0

    def __post_init__(self) -> None:
        check_number("Constant", "value", self.value)

    @override
    def rows(self, ids: Ids, dim: int, seed: int) -> Floats:
        return np.full((len(ids), dim), self.value, np.float32)


Initializer = Uniform | Normal | Constant
INITIALIZERS: dict[str, type[Initializer]] = {
    "Uniform": Uniform,
    "Normal": Normal,
    "Constant": Constant,
}

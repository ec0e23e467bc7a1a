"""How a push moves the rows of a sparse table; the mathematics of torch's optimizers, per row."""

import functools
from dataclasses import dataclass
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from fleetx.ps.wire.arrays import Floats, Ids
from fleetx.ps.wire.plain_data import check_number

KNOWN_STEPS = 4096
"""Updates of a row whose corrections by Adam are not computed each time."""
Tables = tuple[Floats, Floats, int]
"""Rows that begin with weights, rows with the state of a rule, and where in them it begins."""


@dataclass(frozen=True)
class SGD:
    """``w -= lr * g``."""

    lr: float = 0.01

    def __post_init__(self) -> None:
        check_number("SGD", "lr", self.lr, above=-1e-300)

    def state_width(self, dim: int) -> int:
        """Floats that the rule keeps for a row."""
        return 0

    @property
    def first_state(self) -> float:
        """What the state of a row begins with."""
        return 0.0

    def apply(
        self, kernels: ModuleType, tables: Tables, slots: Ids, g: Floats, rate: float
    ) -> None:
        """Move rows that are all different."""
        kernels.sgd(tables[0], slots, g, rate)


@dataclass(frozen=True)
class Adagrad:
    """``s += g*g; w -= lr * g / (sqrt(s) + eps)``."""

    lr: float = 0.01
    eps: float = 1e-10
    initial: float = 0.0
    """What ``s`` begins with."""

    def __post_init__(self) -> None:
        check_number("Adagrad", "lr", self.lr, above=-1e-300)
        check_number("Adagrad", "eps", self.eps, above=-1e-300)
        check_number("Adagrad", "initial", self.initial, above=-1e-300)

    def state_width(self, dim: int) -> int:
        """Floats that the rule keeps for a row."""
        return dim

    @property
    def first_state(self) -> float:
        """What the state of a row begins with."""
        return self.initial

    def apply(
        self, kernels: ModuleType, tables: Tables, slots: Ids, g: Floats, rate: float
    ) -> None:
        """Move rows that are all different."""
        kernels.adagrad(*tables, slots, g, rate, self.eps)


@dataclass(frozen=True)
class Adam:
    """Adam whose bias correction counts the updates of each row, not of the table."""

    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        for name in ("lr", "beta1", "beta2", "eps"):
            check_number("Adam", name, getattr(self, name), above=-1e-300)
        if max(self.beta1, self.beta2) >= 1:
            raise ValueError(f"{self} never forgets; pass betas below 1")

    def state_width(self, dim: int) -> int:
        """Floats that the rule keeps for a row: two moments and a count."""
        return 2 * dim + 1

    @property
    def first_state(self) -> float:
        """What the state of a row begins with."""
        return 0.0

    def apply(
        self, kernels: ModuleType, tables: Tables, slots: Ids, g: Floats, rate: float
    ) -> None:
        """Move rows that are all different."""
        known = _corrections(self.beta1, self.beta2)
        kernels.adam(*tables, slots, g, rate, self.beta1, self.beta2, self.eps, known)


@functools.lru_cache
def _corrections(beta1: float, beta2: float) -> NDArray[np.float64]:
    """Adam's corrections for the first updates of a row; none for the one before them."""
    steps = np.arange(1, KNOWN_STEPS)
    known = np.ones((KNOWN_STEPS, 2))
    known[1:] = np.stack([1 / (1 - beta1**steps), 1 / np.sqrt(1 - beta2**steps)], 1)
    return known


Rule = SGD | Adagrad | Adam
RULES: dict[str, type[Rule]] = {"SGD": SGD, "Adagrad": Adagrad, "Adam": Adam}

"""How a push moves the rows of a sparse table; the mathematics of torch's optimizers, per row."""

from dataclasses import dataclass
from types import ModuleType

from fleetx.ps.wire.arrays import Floats, Ids
from fleetx.ps.wire.plain_data import check_number

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

    def start(self, state: Floats) -> None:
        """Fill the state of new rows."""

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

    def start(self, state: Floats) -> None:
        """Fill the state of new rows."""
        state[:] = self.initial

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

    def start(self, state: Floats) -> None:
        """Fill the state of new rows."""
        state[:] = 0

    def apply(
        self, kernels: ModuleType, tables: Tables, slots: Ids, g: Floats, rate: float
    ) -> None:
        """Move rows that are all different."""
        kernels.adam(*tables, slots, g, rate, self.beta1, self.beta2, self.eps)


Rule = SGD | Adagrad | Adam
RULES: dict[str, type[Rule]] = {"SGD": SGD, "Adagrad": Adagrad, "Adam": Adam}

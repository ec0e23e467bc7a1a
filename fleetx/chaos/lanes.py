"""What each worker adds up in the tables, and how far it says that it has come."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fleetx.ps.tables.dense_table import DenseSpec
from fleetx.ps.tables.initializers import Constant
from fleetx.ps.tables.rules import SGD
from fleetx.ps.tables.sparse_spec import Pace, SparseSpec
from fleetx.ps.wire.arrays import Array, Ids

MODES = ("sync", "async", "half_async", "geo")
ROWS, DIM, NUMBERS = 8, 4, 16
CROWD = 700
"""Rows that a worker pushes beside, if the table is to be larger than memory."""
_SHARED = 1_000_000
_SENT, _ACKNOWLEDGED, _DENSE_SENT, _DENSE_ACKNOWLEDGED, _REFUSED = range(5)


def specs(mode: str, workers: int, storage: str = "memory") -> tuple[SparseSpec, DenseSpec]:
    """Tables that begin with zeros and count: all numbers are whole, so order does not matter.

    Those on the disk have memory for no more rows than any table has.
    """
    pace = Pace(workers=workers if mode == "sync" else 0)
    rows = SparseSpec(
        name="t",
        dim=DIM,
        rule=SGD(1.0),
        initializer=Constant(0.0),
        pace=pace,
        storage=storage,
        memory=int(storage == "disk"),
    )
    blocks = (("w", 0, NUMBERS),)
    return rows, DenseSpec(name="d", blocks=blocks, options={"lr": 1.0}, pace=pace)


def ids_of(lane: int) -> Ids:
    """The rows that one life of a worker trains alone, and those that all train."""
    own = np.arange(lane * ROWS, (lane + 1) * ROWS)
    return np.concatenate([own, np.arange(_SHARED, _SHARED + ROWS)])


def crowding(step: int) -> Ids:
    """Rows of a step that nobody counts: so many that those which are counted go to the disk."""
    return 2 * _SHARED + (step * CROWD + np.arange(CROWD)) % (8 * CROWD)


@dataclass(frozen=True)
class Progress:
    """Numbers that outlive the process which writes them."""

    counts: Any
    """Shared memory of ``size`` whole numbers."""
    servers: int

    @staticmethod
    def size(lanes: int, servers: int) -> int:
        """How many numbers there must be room for."""
        return lanes * servers * 5

    def _all(self) -> Array:
        return np.frombuffer(self.counts, np.int64).reshape(-1, self.servers, 5)

    def sent(self, lane: int, server: int, step: int, *, dense: bool = False) -> None:
        """A push is about to be sent."""
        self._all()[lane, server, _DENSE_SENT if dense else _SENT] = step

    def acknowledged(self, lane: int, server: int, step: int, *, dense: bool = False) -> None:
        """A push was acknowledged."""
        self._all()[lane, server, _DENSE_ACKNOWLEDGED if dense else _ACKNOWLEDGED] = step

    def refused(self, lane: int, server: int) -> None:
        """A push was refused, and is sent again."""
        self._all()[lane, server, _REFUSED] += 1

    def bounds(self, lane: int, server: int, *, dense: bool = False) -> tuple[int, int]:
        """How many pushes must be in the tables, and how many may be."""
        numbers = self._all()[lane, server]
        if dense:
            return int(numbers[_DENSE_ACKNOWLEDGED]), int(numbers[_DENSE_SENT])
        return int(numbers[_ACKNOWLEDGED]), int(numbers[_SENT])

    def total(self) -> int:
        """Pushes of all kinds that were acknowledged."""
        return int(self._all()[:, :, [_ACKNOWLEDGED, _DENSE_ACKNOWLEDGED]].sum())

    def refusals(self, server: int | None = None) -> int:
        """Pushes that were refused, by one server or by all."""
        numbers = self._all()[:, :, _REFUSED]
        return int(numbers.sum() if server is None else numbers[:, server].sum())

    def furthest(self) -> int:
        """The last step that anybody has begun."""
        return int(self._all()[:, :, _SENT].max())

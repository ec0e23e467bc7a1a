"""Gradients that are not finite: one of them would stay in its row, and in its state, for ever."""

import logging

import numpy as np

from fleetx.ps.server.changes import Change
from fleetx.ps.tables import kernels
from fleetx.ps.wire.arrays import Floats

logger = logging.getLogger(__name__)

SKIP, RAISE, APPLY = "skip", "raise", "apply"
ANSWERS = (SKIP, RAISE, APPLY)


class NotFinite:
    """What becomes of them in one table, and how many there were."""

    def __init__(self, table: str) -> None:
        self._table = table
        self.answer = SKIP
        """Leave them out, refuse the push that has some, or take them as they are."""
        self.count = 0
        """Rows, or numbers of a dense table, that were left out since this server began."""

    def found(self, worker: int, change: Change) -> bool:
        """Whether a push has some that must be left out; ``ValueError`` where it is refused."""
        if self.answer == APPLY or _all_finite(change.values):
            return False
        number, what = _described(change)
        told = f"worker {worker} pushed gradients that are not finite to {what} of table "
        told += repr(self._table)
        if self.answer == RAISE:
            raise ValueError(
                f"{told}, and init_server(on_nan='raise') refuses them; nothing of this push was "
                "applied. Lower the learning rate, clip gradients, or leave on_nan at 'skip'"
            )
        self._tell(told, number)
        return True

    def _tell(self, told: str, number: int) -> None:
        before, self.count = self.count, self.count + number
        if before.bit_length() != self.count.bit_length():  # less and less often
            logger.warning(
                "%s; they are left out (fleet.init_server(on_nan='skip')), %d so far",
                told,
                self.count,
            )


def _all_finite(values: Floats) -> bool:
    fine: bool = kernels.active.all_finite(values.reshape(-1).view(np.int32))
    return fine


def _described(change: Change) -> tuple[int, str]:
    """How many rows, or numbers of a dense table, and in words."""
    wrong = ~np.isfinite(change.values)
    if wrong.ndim == 1:
        number = int(np.count_nonzero(wrong))
        return number, f"{number} dense parameters"
    rows = wrong.any(axis=1)
    number = int(np.count_nonzero(rows))
    return number, f"{number} rows, such as that of id {change.ids[rows][0]},"

"""``FetchHandler``: looks at variables now and then while a program goes through a data set."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fleetx.record.variable import as_variable


class FetchHandler(ABC):
    """Override ``handler``; it is called between two batches, when ``period_secs`` have passed."""

    def __init__(
        self, var_dict: Mapping[str, Tensor | str] | None = None, period_secs: float = 60
    ) -> None:
        """Say what to look at.

        Args:
            var_dict: the caller's name of a value -> the variable.
            period_secs: seconds between two calls; 0 calls after every batch.
        """
        if not var_dict:
            raise ValueError(
                "FetchHandler() was given no variables; pass var_dict={'loss': loss}, by the names "
                "under which handler() shall see them"
            )
        if period_secs < 0:
            raise ValueError(f"period_secs={period_secs!r} is negative; pass 0 or more")
        self.var_dict, self.period_secs = dict(var_dict), period_secs
        self._last = time.monotonic()

    @abstractmethod
    def handler(self, res_dict: Mapping[str, Any]) -> None:
        """Is given the values of the variables as arrays."""

    def variables(self) -> Sequence[str]:
        """The names of the variables in their program."""
        given = self.var_dict.values()
        return [v if isinstance(v, str) else as_variable(v, "var_dict").name for v in given]

    def due(self) -> bool:
        """Whether it is time for another call; the time begins anew then."""
        now = time.monotonic()
        if now - self._last < self.period_secs:
            return False
        self._last = now
        return True

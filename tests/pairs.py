"""Exchanges that are made of messages between two ranks, seen as what they stand for."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from fleetx.comm import pairwise

GATHER, SCATTER = "_allgather_base_", "_reduce_scatter_base_"
"""What torch calls the collectives."""


class Pairs(AbstractContextManager["Pairs"]):
    """Tells of each exchange the collective that it stands for, and its whole tensor."""

    def __init__(self, tell: Callable[[str, Tensor], None]) -> None:
        self._tell, self._real = tell, (pairwise.gather_two, pairwise.sum_rows)
        self.inside = False
        """Whether messages that go by now are parts of one."""

    def __enter__(self) -> "Pairs":
        gather, add = self._real
        pairwise.gather_two = self._told(GATHER, gather, 0)
        pairwise.sum_rows = self._told(SCATTER, add, 1)
        return self

    def __exit__(self, *error: object) -> None:
        pairwise.gather_two, pairwise.sum_rows = self._real

    def _told(self, name: str, real: Callable[..., None], at: int) -> Any:
        def call(*args: Any) -> None:
            self._tell(name, args[at])
            self.inside = True
            try:
                real(*args)
            finally:
                self.inside = False

        return call

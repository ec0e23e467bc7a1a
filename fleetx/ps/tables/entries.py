"""Which ids get a row at all, and which rows are worth keeping."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetx.ps.tables.hashing import uniform
from fleetx.ps.wire.arrays import Floats, Ids
from fleetx.ps.wire.plain_data import check_number

_SALT = 0x5EED


@dataclass(frozen=True)
class CountFilterEntry:
    """An id gets a row when it was met so many times."""

    count: int

    def __post_init__(self) -> None:
        count: Any = self.count
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ValueError(
                f"CountFilterEntry({self.count!r}): an id is met a whole number of times; "
                "pass an int from 0"
            )

    def admits(self, ids: Ids, met: Ids) -> NDArray[np.bool_]:
        """Whether each id is let in, having been met so often by now."""
        return met >= self.count


@dataclass(frozen=True)
class ProbabilityEntry:
    """Each time an id is met it gets a row with this probability.

    The draw depends on the id and on how often it was met, so a job repeats itself.
    """

    probability: float

    def __post_init__(self) -> None:
        chance: Any = self.probability
        if not isinstance(chance, float) or not 0 < chance < 1:
            raise ValueError(
                f"ProbabilityEntry({self.probability!r}): pass a float between 0 and 1"
            )

    def admits(self, ids: Ids, met: Ids) -> NDArray[np.bool_]:
        """Whether each id is let in, having been met so often by now."""
        seeds = np.asarray(ids, np.int64) ^ (np.asarray(met, np.int64) << 32)
        return uniform(seeds, 1, _SALT)[:, 0] < self.probability


@dataclass(frozen=True)
class ShowClickEntry:
    """Every id gets a row, which counts shows and clicks; ``shrink`` drops rows of low score.

    A layer is told them by ``layer(ids, show=..., click=...)``; ``static.nn.sparse_embedding``
    takes the inputs of the program that have these names.
    """

    show_name: str = "show"
    click_name: str = "click"
    show_weight: float = 0.1
    """What a show without a click adds to the score."""
    click_weight: float = 1.0
    """What a click adds to the score."""
    decay: float = 0.98
    """What ``shrink`` leaves of all counts."""
    lowest: float = 0.8
    """Rows with a lower score are dropped by ``shrink``."""

    def __post_init__(self) -> None:
        given: tuple[Any, Any] = self.show_name, self.click_name
        for name in given:
            if not isinstance(name, str):
                raise ValueError(f"ShowClickEntry({name!r}): pass the names of the two slots")
        for name in ("show_weight", "click_weight", "decay", "lowest"):
            check_number("ShowClickEntry", name, getattr(self, name), above=-1e-300)

    def scores(self, stats: Floats) -> Floats:
        """The worth of rows, given their shows and clicks."""
        shows, clicks = stats[:, 0], stats[:, 1]
        worth = self.show_weight * (shows - clicks) + self.click_weight * clicks
        return worth.astype(np.float32)


def check_unseen_days(threshold: Any) -> int:
    """The number of days after which ``shrink`` drops a row, or an error that says what it may be.

    A day counts when it has ended and the row was not met on it; so at 1 all rows go that were not
    met on the day that ends, and no number drops those that were.
    """
    if isinstance(threshold, bool) or not isinstance(threshold, int) or threshold < 1:
        raise ValueError(
            f"shrink({threshold!r}): a row goes when it was not met for so many days, and there is "
            "no such number of them; pass a whole number from 1, at which all rows go that were "
            "not met on the day that ends"
        )
    return threshold


Entry = CountFilterEntry | ProbabilityEntry | ShowClickEntry
ENTRIES: dict[str, type[Entry]] = {
    "CountFilterEntry": CountFilterEntry,
    "ProbabilityEntry": ProbabilityEntry,
    "ShowClickEntry": ShowClickEntry,
}

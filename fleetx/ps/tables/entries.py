"""Which ids get a row at all, and which rows are worth keeping."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetx.ps.tables.hashing import uniform
from fleetx.ps.wire.arrays import Floats, Ids
from fleetx.ps.wire.plain_data import check_number

_SALT = 0x5EED
UNSEEN_DAYS = 30
"""Days after which ``shrink`` drops a row, where nobody has said another number."""


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
    base_threshold: float = 0.0
    """Saves of mode 1 and 2 hold rows with this score or a higher one."""
    delta_keep_days: int | None = None
    """They hold rows that were met within so many days; None for any."""
    delete_after_unseen_days: int | None = None
    """Days without being met after which ``fleet.shrink()`` drops a row, where it is told none."""
    delta_threshold: float = 0.0
    """Refused: saves of mode 1 hold every row that has changed."""

    def __post_init__(self) -> None:
        given: tuple[Any, Any] = self.show_name, self.click_name
        for name in given:
            if not isinstance(name, str):
                raise ValueError(f"ShowClickEntry({name!r}): pass the names of the two slots")
        for name in ("show_weight", "click_weight", "decay", "lowest", "base_threshold"):
            check_number("ShowClickEntry", name, getattr(self, name), above=-1e-300)
        for name in ("delta_keep_days", "delete_after_unseen_days"):
            _check_days(name, getattr(self, name))
        if self.delta_threshold != 0:
            raise ValueError(
                f"ShowClickEntry(delta_threshold={self.delta_threshold!r}) would leave rows out of "
                "a delta whose score has risen by less, and a copy made of deltas would keep old "
                "numbers for them; rows that changed are all written here. Leave it at 0, and set "
                "base_threshold to leave out rows that are worth little"
            )

    def worth_saving(self, stats: Floats, days: NDArray[Any], today: int) -> NDArray[np.bool_]:
        """Whether saves of mode 1 and 2 hold rows with these counts, last met on these days."""
        fine = self.scores(stats) >= np.float32(self.base_threshold)
        if self.delta_keep_days is not None:
            fine &= today - days <= self.delta_keep_days
        return fine

    def scores(self, stats: Floats) -> Floats:
        """The worth of rows, given their shows and clicks."""
        shows, clicks = stats[:, 0], stats[:, 1]
        worth = self.show_weight * (shows - clicks) + self.click_weight * clicks
        return worth.astype(np.float32)


def _check_days(name: str, days: Any) -> None:
    if days is None:
        return
    if isinstance(days, bool) or not isinstance(days, int) or days < 1:
        raise ValueError(
            f"ShowClickEntry({name}={days!r}): pass a whole number of days from 1, or None"
        )


def unseen_days_of(entry: "Entry | None") -> int:
    """After how many days a row goes that was not met, if ``shrink`` is told no number."""
    own = entry.delete_after_unseen_days if isinstance(entry, ShowClickEntry) else None
    return UNSEEN_DAYS if own is None else own


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

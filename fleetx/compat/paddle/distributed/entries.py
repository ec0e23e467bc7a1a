"""When a row of a table begins to exist: ``CountFilterEntry`` and its like."""

from fleetx.ps.tables import entries
from fleetx.ps.tables.entries import ProbabilityEntry, ShowClickEntry


class CountFilterEntry(entries.CountFilterEntry):
    """With its n-th use."""

    def __init__(self, count_filter: int) -> None:
        super().__init__(count_filter)


__all__ = ["CountFilterEntry", "ProbabilityEntry", "ShowClickEntry"]

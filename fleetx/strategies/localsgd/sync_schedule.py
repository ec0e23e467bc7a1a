"""When replicas that train alone meet, counted alike on every rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class SyncSchedule:
    """Up to update ``begin`` replicas meet after each one, later when an interval has passed."""

    begin: int
    updates: int = 0
    last: int = 0

    def after_update(self, interval: int) -> bool:
        """Count an update, a skipped one too; do the replicas meet now?"""
        self.updates += 1
        if not self.beginning and self.updates - self.last < interval:
            return False
        self.last = self.updates
        return True

    @property
    def beginning(self) -> bool:
        """Whether replicas still meet after each update."""
        return self.updates <= self.begin

    @property
    def just_met(self) -> bool:
        """Whether the last update ended in a meeting, or there was none yet."""
        return self.last == self.updates

    def state_dict(self) -> dict[str, Any]:
        """The counters."""
        return {"updates": self.updates, "last": self.last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the counters back."""
        self.updates, self.last = state["updates"], state["last"]

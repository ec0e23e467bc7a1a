"""How much a server does in a second."""

import threading
import time
from collections import deque
from collections.abc import Mapping

WINDOW = 10.0
"""Seconds that a rate is the mean of."""

Counts = Mapping[str, Mapping[str, int]]
"""Table -> name -> how often, since the server was started."""


class ServiceRates:
    """Rates over the last seconds, from counts that are taken now and then."""

    def __init__(self, window: float = WINDOW) -> None:
        self._window, self._lock = window, threading.Lock()
        self._taken: deque[tuple[float, Counts]] = deque()

    def take(self, counts: Counts, now: float | None = None) -> None:
        """Note how far the counts have come."""
        now = time.monotonic() if now is None else now
        with self._lock:
            self._taken.append((now, counts))
            while len(self._taken) > 2 and self._taken[1][0] <= now - self._window:
                self._taken.popleft()

    def per_second(self, table: str) -> dict[str, float]:
        """By how much each count of a table rises in a second."""
        with self._lock:
            if len(self._taken) < 2:
                return {}
            (begin, before), (end, after) = self._taken[0], self._taken[-1]
        seconds, old = max(end - begin, 1e-9), before.get(table, {})
        return {name: (n - old.get(name, 0)) / seconds for name, n in after.get(table, {}).items()}

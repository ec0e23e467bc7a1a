"""What the launchers of a job tell each other, through keys of one store."""

import time
from typing import TYPE_CHECKING

from fleetx.launch.failure import Failure, first

if TYPE_CHECKING:
    from fleetx.launch.store import Store

SETTLE = 1.0
"""Seconds in which failures of several machines count as one event, to find the first."""
FAREWELL = 3.0
"""Seconds the keeper of the store waits for the others to have read it."""
BEAT = 1.0
SILENCE = 30.0
"""Seconds without a sign of life after which a machine counts as lost."""


class Bulletin:
    """The board on which a launcher posts and reads; all calls return at once."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._posted_at: float | None = None
        self._beat_at = 0.0
        self._beats: dict[int, tuple[int, float]] = {}

    def count_failed(self, attempt: int) -> int:
        """Counts a failed attempt once, however many machines report it; how many there were."""
        once = self._store.add(f"failed/{attempt}", 1) == 1
        return self._store.add("failed", int(once))

    def post(self, failure: Failure) -> None:
        """Tells everyone that the job is over."""
        number = self._store.add("failures", 1)
        self._store.set(f"failure/{number}", failure.to_json())
        self._posted_at = time.monotonic()

    def failed(self) -> bool:
        """True when somebody's failure ended the job."""
        return self._store.add("failures", 0) > 0

    def first_failure(self) -> Failure:
        """The earliest of all failures posted within the settling time."""
        began = self._posted_at or time.monotonic()
        time.sleep(max(0.0, began + SETTLE - time.monotonic()))
        number = self._store.add("failures", 0)
        texts = [self._store.get(f"failure/{index + 1}") for index in range(number)]
        return first([Failure.from_json(text.decode()) for text in texts])

    def finish(self, attempt: int, workers: int) -> None:
        """Tells that so many workers of this machine have ended well."""
        self._store.add(f"finished/{attempt}", workers)

    def finished(self, attempt: int) -> int:
        """How many workers have ended well on all machines."""
        return self._store.add(f"finished/{attempt}", 0)

    def beat(self, node_rank: int, nnodes: int) -> int | None:
        """Shows a sign of life; on the first machine, returns the rank of one that is silent."""
        now = time.monotonic()
        if now - self._beat_at < BEAT:
            return None
        self._beat_at = now
        self._store.add(f"beat/{node_rank}", 1)
        if node_rank != 0:
            return None
        for other in range(1, nnodes):
            count = self._store.add(f"beat/{other}", 0)
            before, since = self._beats.get(other, (-1, now))
            self._beats[other] = (count, now if count != before else since)
            if now - self._beats[other][1] > SILENCE:
                return other
        return None

    def farewell(self, *, keeper: bool, others: int) -> None:
        """Says goodbye; the keeper of the store stays until the others have."""
        if not keeper:
            self._store.add("farewells", 1)
            return
        deadline = time.monotonic() + FAREWELL
        while self._store.add("farewells", 0) < others and time.monotonic() < deadline:
            time.sleep(0.05)

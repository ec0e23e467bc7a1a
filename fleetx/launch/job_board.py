"""What the launchers of a job tell each other, through keys of one store."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleetx.launch.failure import Failure, first

if TYPE_CHECKING:
    from fleetx.launch.store import Store

SETTLE = 1.0
"""Seconds in which failures of several machines count as one event, to find the first."""
FAREWELL = 5.0
"""Seconds the keeper of the store waits for the others to have read it."""
BEAT = 1.0
SILENCE = 30.0
"""Seconds without a sign of life after which a machine counts as lost."""


@dataclass(frozen=True)
class _Heard:
    """The last sign of life of the machine that this one watches."""

    attempt: int = -1
    count: int = 0
    since: float = 0.0


class JobBoard:
    """The board on which a launcher posts and reads; all calls return at once."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._posted_at: float | None = None
        self._read: list[Failure] = []
        self._beat_at = 0.0
        self._heard = _Heard()

    def next_attempt(self) -> int:
        """The number of the attempt that begins; for the machine of rank 0, whichever that is."""
        return self._store.add("attempts", 1) - 1

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
        """True when somebody's failure ended the job.

        Failures are read as soon as they are seen: by the time that this machine has stopped its
        workers, the keeper of the store may be gone.
        """
        number = self._store.add("failures", 0)
        for index in range(len(self._read), number):
            text = self._store.get(f"failure/{index + 1}")
            self._read.append(Failure.from_json(text.decode()))
        return number > 0

    def first_failure(self) -> Failure:
        """The earliest of all failures posted within the settling time."""
        began = self._posted_at or time.monotonic()
        time.sleep(max(0.0, began + SETTLE - time.monotonic()))
        try:
            self.failed()
        except RuntimeError:  # what torch's stores raise
            if not self._read:
                raise
        return first(self._read)

    def succeed(self) -> None:
        """Tells that all workers of the job have ended well."""
        self._store.add("succeeded", 1)

    def succeeded(self) -> bool:
        """True when they have."""
        return self._store.add("succeeded", 0) > 0

    def finish(self, attempt: int, workers: int) -> None:
        """Tells that so many workers of this machine have ended well."""
        self._store.add(f"finished/{attempt}", workers)

    def finished(self, attempt: int) -> int:
        """How many workers have ended well on all machines."""
        return self._store.add(f"finished/{attempt}", 0)

    def beat(self, attempt: int, node_rank: int, nnodes: int) -> int | None:
        """Shows a sign of life; returns the rank of the machine before this one if it is silent.

        A ring, because any machine may die, the first one too.
        """
        now = time.monotonic()
        if now - self._beat_at < BEAT and attempt == self._heard.attempt:
            return None
        self._beat_at = now
        self._store.add(f"beat/{attempt}/{node_rank}", 1)
        other = (node_rank - 1) % nnodes
        count = self._store.add(f"beat/{attempt}/{other}", 0)
        if (attempt, count) != (self._heard.attempt, self._heard.count):
            self._heard = _Heard(attempt, count, now)
        return other if now - self._heard.since > SILENCE else None

    def meet_again(self, attempt: int) -> None:
        """Asks the machines of an attempt to meet anew."""
        self._store.add(f"again/{attempt}", 1)

    def is_to_meet_again(self, attempt: int) -> bool:
        """True when somebody has asked for it."""
        return self._store.add(f"again/{attempt}", 0) > 0

    def leave(self, attempt: int) -> None:
        """Tells that a machine takes its leave, because it was told to stop."""
        self._store.add(f"leaves/{attempt}", 1)

    def is_left(self, attempt: int) -> bool:
        """True when a machine of that attempt takes its leave."""
        return self._store.add(f"leaves/{attempt}", 0) > 0

    def lose(self, attempt: int) -> int:
        """Counts a worker that was killed; how many there were on all machines."""
        return self._store.add(f"lost/{attempt}", 1)

    def tell_activity(self, attempt: int, node_rank: int, text: str) -> None:
        """Leaves what the workers of this machine do, for the machine that judges."""
        self._store.set(f"activity/{attempt}/{node_rank}", text)

    def activities(self, attempt: int, nnodes: int) -> list[str]:
        """What other machines have left."""
        keys = [f"activity/{attempt}/{node}" for node in range(nnodes)]
        return [self._store.get(key).decode() for key in keys if self._store.check([key])]

    def announce(self, attempt: int, text: str) -> None:
        """Tells the launchers of the other machines something to print."""
        number = self._store.add(f"announced/{attempt}", 1)
        self._store.set(f"announcement/{attempt}/{number}", text)

    def announcements(self, attempt: int, after: int) -> list[str]:
        """What was announced since the first `after` announcements."""
        number = self._store.add(f"announced/{attempt}", 0)
        keys = [f"announcement/{attempt}/{each + 1}" for each in range(after, number)]
        return [self._store.get(key).decode() for key in keys]

    def farewell(self, *, keeper: bool, others: int) -> None:
        """Says goodbye; the keeper of the store stays until the others have."""
        if not keeper:
            self._store.add("farewells", 1)
            return
        deadline = time.monotonic() + FAREWELL
        while self._store.add("farewells", 0) < others and time.monotonic() < deadline:
            time.sleep(0.05)

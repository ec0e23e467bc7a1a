"""Which workers are there, which are done, and which are dead."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fleetx.ps.wire.errors import PeerLostError

logger = logging.getLogger(__name__)

BACK, DEAD = "back", "dead"
"""What a witness is told."""
PATIENCE = 300.0
"""Seconds after which a worker that never came counts as dead, since the last one that did."""
SILENCE = 8.0
"""Seconds without a sign of life after which a worker counts as dead."""
GRACE = 3.0
"""Seconds that a worker whose connections are all gone has to come back."""


@dataclass
class _Member:
    seen: float
    connections: int = 0
    finished: bool = False
    resting: bool = False
    dead: bool = False
    met: bool = False
    """It has connected to this server, since the server was started."""
    recalled: bool = False
    """It is dead by the log of a server that is gone; it may have been started again since."""


class Members:
    """Watched by every server for itself."""

    def __init__(
        self,
        workers: int,
        silence: float = SILENCE,
        grace: float = GRACE,
        patience: float = PATIENCE,
    ) -> None:
        self.workers = workers
        self._silence, self._grace, self.patience = silence, grace, patience
        self._lock = threading.Lock()
        now = time.monotonic()
        self._members = {worker: _Member(now) for worker in range(workers)}
        self._newest: float | None = None
        """When a worker last connected for the first time."""
        self.witness: Callable[[str, int], None] = lambda event, worker: None
        """Is told who died and who is back; outside of our lock, for it has one of its own."""
        self.ended = threading.Event()
        """Set when the last worker has said that it is done."""

    def arrived(self, worker: int) -> None:
        """A connection of a worker opened."""
        with self._lock:
            member = self._members[worker]
            member.connections += 1
            if not member.met:
                member.met, self._newest = True, time.monotonic()
            if member.finished and member.connections == 1:
                member.finished = False  # it was started again
        self.heard(worker)

    def heard(self, worker: int) -> None:
        """A worker gave a sign of life."""
        member = self._members[worker]
        member.seen = time.monotonic()
        if member.dead:
            member.dead = member.recalled = False
            logger.warning("worker %d is back", worker)
            self.witness(BACK, worker)

    def recall(self, worker: int, event: str) -> None:
        """A log says that a worker died, or came back."""
        member = self._members[worker]
        member.dead = member.recalled = event == DEAD
        self._settle()

    def left(self, worker: int) -> None:
        """A connection of a worker closed."""
        with self._lock:
            member = self._members[worker]
            member.connections -= 1
            member.seen = time.monotonic()

    def finish(self, worker: int) -> None:
        """A worker says that it is done; after the last one the server may end."""
        with self._lock:
            self._members[worker].finished = True
            self._settle()

    def rest(self, worker: int, resting: bool) -> None:
        """A worker is between two stretches of its data, or begins the next one."""
        with self._lock:
            self._members[worker].resting = resting

    @property
    def over(self) -> bool:
        """Whether nobody is left to work for; dead workers are not waited for, but end nothing."""
        members = self._members.values()
        done = all(member.finished or member.dead for member in members)
        return done and any(member.finished for member in members)

    def _settle(self) -> None:
        if self.over:
            self.ended.set()

    def look(self) -> list[int]:
        """Notice who died since the last look; returns all the dead."""
        now = time.monotonic()
        with self._lock:
            died = [w for w, member in self._members.items() if self._died(member, now)]
            for worker in died:
                self._members[worker].dead, self._members[worker].recalled = True, False
            self._settle()
        for worker in died:
            logger.warning("worker %d is dead: %s", worker, self._why(self._members[worker]))
            self.witness(DEAD, worker)
        return self.dead()

    def _died(self, member: _Member, now: float) -> bool:
        known = member.finished or (member.dead and not member.recalled)
        if known or (not member.met and self._newest is None):
            return False  # as long as nobody comes, nobody is late
        since = member.seen if member.met else self._newest
        assert since is not None
        return now - since > self._limit(member)

    def _limit(self, member: _Member) -> float:
        if not member.met:
            return self.patience
        return self._silence if member.connections else self._grace

    def _why(self, member: _Member) -> str:
        silent = "no sign of life" if member.connections else "all connections closed"
        what = silent if member.met else "it has not come"
        return f"{what} for {self._limit(member):.0f} s; the others go on if they can"

    def dead(self) -> list[int]:
        """The workers that count as dead."""
        return self._those(lambda member: member.dead)

    def finished(self) -> list[int]:
        """The workers that are done."""
        return self._those(lambda member: member.finished)

    def absent(self) -> list[int]:
        """The workers that will not come any more: dead or done."""
        return self._those(lambda member: member.dead or member.finished)

    def idle(self) -> list[int]:
        """The workers that have no batch to train on: done, or resting."""
        return self._those(lambda member: member.finished or member.resting)

    def _those(self, chosen: Callable[[_Member], bool]) -> list[int]:
        # Copied in one go: others may arrive while we look.
        return sorted(worker for worker, member in [*self._members.items()] if chosen(member))

    def require(self, workers: list[int] | None = None) -> None:
        """Raise, with its name, when one of the workers (any, if not said) is dead."""
        sure = self._those(lambda member: member.dead and not member.recalled)
        dead = [w for w in sure if workers is None or w in workers]
        if dead:
            raise PeerLostError(
                f"worker {dead[0]} is dead, and synchronous training cannot go on without it; "
                "start the job again from its last save, or train with strategy.a_sync = True, "
                "which goes on without lost workers"
            )

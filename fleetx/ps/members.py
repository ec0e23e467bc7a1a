"""Which workers are there, which are done, and which are dead."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

SILENCE = 8.0
"""Seconds without a sign of life after which a worker counts as dead."""
GRACE = 3.0
"""Seconds that a worker whose connections are all gone has to come back."""


class PeerLostError(RuntimeError):
    """A worker that others wait for is dead."""


@dataclass
class _Member:
    seen: float
    connections: int = 0
    finished: bool = False
    resting: bool = False
    dead: bool = False


class Members:
    """Watched by every server for itself."""

    def __init__(self, workers: int, silence: float = SILENCE, grace: float = GRACE) -> None:
        self.workers = workers
        self._silence, self._grace = silence, grace
        self._lock = threading.Lock()
        self._members: dict[int, _Member] = {}
        self.ended = threading.Event()
        """Set when the last worker has said that it is done."""

    def arrived(self, worker: int) -> None:
        """A connection of a worker opened."""
        with self._lock:
            member = self._members.setdefault(worker, _Member(time.monotonic()))
            member.connections += 1
            if member.dead:
                logger.warning("worker %d is back", worker)
            if member.finished and member.connections == 1:
                member.finished = False  # it was started again
            member.seen, member.dead = time.monotonic(), False

    def heard(self, worker: int) -> None:
        """A worker gave a sign of life."""
        member = self._members[worker]
        member.seen = time.monotonic()
        if member.dead:
            logger.warning("worker %d is back", worker)
            member.dead = False

    def left(self, worker: int) -> None:
        """A connection of a worker closed."""
        with self._lock:
            member = self._members[worker]
            member.connections -= 1
            member.seen = time.monotonic()

    def finish(self, worker: int) -> None:
        """A worker says that it is done; after the last one the server may end."""
        with self._lock:
            member = self._members.setdefault(worker, _Member(time.monotonic()))
            member.finished = True
            self._settle()

    def rest(self, worker: int, resting: bool) -> None:
        """A worker is between two stretches of its data, or begins the next one."""
        with self._lock:
            member = self._members.setdefault(worker, _Member(time.monotonic()))
            member.resting = resting

    def _settle(self) -> None:
        """Dead workers are not waited for, but they alone end nothing."""
        members = self._members.values()
        done = sum(member.finished or member.dead for member in members)
        if done == self.workers and any(member.finished for member in members):
            self.ended.set()

    def look(self) -> list[int]:
        """Notice who died since the last look; returns all the dead."""
        now = time.monotonic()
        with self._lock:
            for worker, member in self._members.items():
                limit = self._silence if member.connections else self._grace
                silent = now - member.seen > limit
                if silent and not member.finished and not member.dead:
                    member.dead = True
                    logger.warning(
                        "worker %d is dead: %s for %.0f s; the others go on if they can",
                        worker,
                        "no sign of life" if member.connections else "all connections closed",
                        limit,
                    )
            self._settle()
            return self.dead()

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
        dead = [w for w in self.dead() if workers is None or w in workers]
        if dead:
            raise PeerLostError(
                f"worker {dead[0]} is dead, and synchronous training cannot go on without it; "
                "start the job again from its last save, or train with strategy.a_sync = True, "
                "which goes on without lost workers"
            )

"""Which workers are there, which are done, and which are dead."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fleetx.ps.wire.errors import PeerLostError

logger = logging.getLogger(__name__)

BACK, DEAD = "back", "dead"
"""The events that ``on_change`` is called with."""
PATIENCE = 300.0
"""Seconds after which a worker that never came counts as dead, since the last one that did."""
SILENCE = 8.0
"""Seconds without a sign of life after which a worker counts as dead."""
GRACE = 3.0
"""Seconds that a worker whose connections are all gone has to come back."""
LONGEST_LOOK = 1.0
"""Seconds that may pass between two looks and count in full."""


@dataclass
class _WorkerState:
    seen: float
    connections: int = 0
    finished: bool = False
    resting: bool = False
    dead: bool = False
    met: bool = False
    """It has connected to this server, since the server was started."""
    dead_by_log: bool = False
    """It is dead by the log of a server that is gone; it may have been started again since."""


class Membership:
    """What one server knows of the workers; every server watches them by itself."""

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
        self._watched, self._looked = 0.0, time.monotonic()
        """Seconds during which this server could hear its workers, and when it last looked."""
        self._states = {worker: _WorkerState(0.0) for worker in range(workers)}
        self._newest: float | None = None
        """When a worker last connected for the first time."""
        self.on_change: Callable[[str, int], None] = lambda event, worker: None
        """Called with who died and who is back; without our lock, for it takes one of its own."""
        self.ended = threading.Event()
        """Set when the last worker has reported that it is done, or all are gone for good."""
        self.abandoned = False
        """Whether all workers are gone for good, and none of them had said that it was done."""
        self._all_dead_since: float | None = None

    def connected(self, worker: int) -> None:
        """A connection of a worker opened."""
        with self._lock:
            state = self._states[worker]
            state.connections += 1
            if not state.met:
                state.met, self._newest = True, self._watched
            if state.finished and state.connections == 1:
                state.finished = False  # it was started again
        self.heard(worker)

    def heard(self, worker: int) -> None:
        """A worker gave a sign of life."""
        state = self._states[worker]
        state.seen = self._watched
        if state.dead:
            state.dead = state.dead_by_log = False
            logger.warning("worker %d is back", worker)
            self.on_change(BACK, worker)

    def restore(self, worker: int, event: str) -> None:
        """A log says that a worker died, or came back."""
        state = self._states[worker]
        state.dead = state.dead_by_log = event == DEAD
        self._settle()

    def disconnected(self, worker: int) -> None:
        """A connection of a worker closed."""
        with self._lock:
            state = self._states[worker]
            state.connections -= 1
            state.seen = self._watched

    def finish(self, worker: int) -> None:
        """A worker says that it is done; after the last one the server may end."""
        with self._lock:
            self._states[worker].finished = True
            self._settle()

    def rest(self, worker: int, resting: bool) -> None:
        """A worker is between two stretches of its data, or begins the next one."""
        with self._lock:
            self._states[worker].resting = resting

    @property
    def job_over(self) -> bool:
        """Whether nobody is left to work for; dead workers are not waited for, but end nothing."""
        membership = self._states.values()
        done = all(state.finished or state.dead for state in membership)
        return done and any(state.finished for state in membership)

    def _settle(self) -> None:
        if self.job_over:
            self.ended.set()

    def find_dead(self) -> list[int]:
        """Notice who died since the last look; returns all the dead."""
        with self._lock:
            self._watch()
            died = [w for w, state in self._states.items() if self._died(state)]
            for worker in died:
                self._states[worker].dead, self._states[worker].dead_by_log = True, False
            self._settle()
            self._give_up()
        for worker in died:
            logger.warning("worker %d is dead: %s", worker, self._why(self._states[worker]))
            self.on_change(DEAD, worker)
        return self.dead()

    def _give_up(self) -> None:
        """End if all workers are dead and none has come back for as long as anybody is patient."""
        dead = all(state.dead and not state.dead_by_log for state in self._states.values())
        if not dead or not self.workers:  # a copy of tables has none, and is looked at by others
            self._all_dead_since = None
        elif self._all_dead_since is None:
            self._all_dead_since = self._watched
        elif self._watched - self._all_dead_since > self.patience:
            self.abandoned = True
            self.ended.set()

    def _watch(self) -> None:
        """Count the time since the last look, as far as this server was awake.

        One that was stopped, or had no processor, finds signs of life that wait to be read: nobody
        was silent because it did not listen.
        """
        now = time.monotonic()
        self._watched += min(now - self._looked, LONGEST_LOOK)
        self._looked = now

    def _died(self, state: _WorkerState) -> bool:
        known = state.finished or (state.dead and not state.dead_by_log)
        if known or (not state.met and self._newest is None):
            return False  # as long as nobody comes, nobody is late
        since = state.seen if state.met else self._newest
        assert since is not None
        return self._watched - since > self._limit(state)

    def _limit(self, state: _WorkerState) -> float:
        if not state.met:
            return self.patience
        return self._silence if state.connections else self._grace

    def _why(self, state: _WorkerState) -> str:
        silent = "no sign of life" if state.connections else "all connections closed"
        what = silent if state.met else "it has not come"
        return f"{what} for {self._limit(state):.0f} s; the others go on if they can"

    def dead(self) -> list[int]:
        """The workers that count as dead."""
        return self._those(lambda state: state.dead)

    def finished(self) -> list[int]:
        """The workers that are done."""
        return self._those(lambda state: state.finished)

    def absent(self) -> list[int]:
        """The workers that will not come any more: dead or done."""
        return self._those(lambda state: state.dead or state.finished)

    def idle(self) -> list[int]:
        """The workers that have no batch to train on: done, or resting."""
        return self._those(lambda state: state.finished or state.resting)

    def _those(self, chosen: Callable[[_WorkerState], bool]) -> list[int]:
        # Copied in one go: others may arrive while we look.
        return sorted(worker for worker, state in [*self._states.items()] if chosen(state))

    def require_alive(self, workers: list[int] | None = None) -> None:
        """Raise, with its name, when one of these workers (of all, if None) is dead."""
        sure = self._those(lambda state: state.dead and not state.dead_by_log)
        dead = [w for w in sure if workers is None or w in workers]
        if dead:
            raise PeerLostError(
                f"worker {dead[0]} is dead, and synchronous training cannot go on without it; "
                "start the job again from its last save, or train with strategy.a_sync = True, "
                "which goes on without lost workers"
            )

"""In which phase of a step the script's own thread is, and how long it stays there."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.profiler import record_function

DATA, FORWARD, BACKWARD, UPDATE = "data", "forward", "backward", "update"
SCRIPT, BETWEEN = "script", "between"
PHASES = (DATA, FORWARD, BACKWARD, UPDATE, SCRIPT, BETWEEN)
"""Waiting for a batch of a loader; from the call of the model to the beginning of backward;
backward; the update; lines of the script inside of a step, and between two of them."""
MARK = "fleetx phase: "
"""How a trace names the moments at which phases begin."""
STEP = "fleetx step"
"""How it names those at which steps end."""


class Phases:
    """Adds up what each phase takes; one of them is always in force.

    Args:
        clock: gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._thread = threading.get_ident()
        self._now = SCRIPT
        self._since = clock()
        self._spent = dict.fromkeys(PHASES, 0.0)
        self.marks = False
        """Whether a trace is being made, in which changes are marked."""
        self.driven = False
        """Whether the plan runs a whole batch, so that nothing in between is the script's."""

    @property
    def now(self) -> str:
        """The phase in force."""
        return self._now

    def enter(self, phase: str) -> None:
        """From now on this phase is in force; threads that help the script change nothing."""
        if threading.get_ident() != self._thread:
            return
        self._count()
        self._now = phase
        if self.marks:
            mark(MARK + phase)

    @contextmanager
    def inside(self, phase: str) -> Iterator[None]:
        """Inside, this phase is in force; afterwards, the one before."""
        before = self._now
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def lap(self) -> dict[str, float]:
        """A step is over: seconds of each phase since the last one."""
        self._count()
        spent, self._spent = self._spent, dict.fromkeys(PHASES, 0.0)
        if self.marks:
            mark(STEP)
        return spent

    def restart(self) -> None:
        """Forget the time since the last lap, which went into measuring."""
        self._since = self._clock()
        self._spent = dict.fromkeys(PHASES, 0.0)

    def _count(self) -> None:
        now = self._clock()
        self._spent[self._now] += now - self._since
        self._since = now


def mark(name: str) -> None:
    """A moment in the trace."""
    with record_function(name):
        pass

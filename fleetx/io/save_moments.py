"""When all workers save: after the same update, decided by the clock of worker 0.

Workers do not exchange anything in most updates. At each meeting worker 0 leaves its decision in
the store, with the number of the update at which they meet again, about a second later; the others
read it there. Whoever was told to stop leaves a wish, which worker 0 finds at the next meeting.
"""

import itertools
import json
import time
from dataclasses import dataclass
from typing import Any

from fleetx import roles
from fleetx.io.background import writing
from fleetx.roles.barrier import Barrier
from fleetx.roles.leaving import notice
from fleetx.roles.session import world

CALL = "CheckpointManager.step()"
BETWEEN = 1.0
"""Seconds between two meetings, at the most where updates are faster."""
FARTHEST = 50
"""Updates between two meetings at the most: those to come may be slower than those before."""
REMEMBERED = 10_000
"""Decisions that stay in the store; no worker is so far behind."""

_managers = itertools.count()
"""Whoever saves, in the order in which all workers made them."""


@dataclass(frozen=True)
class Verdict:
    """What all workers do after an update."""

    save: bool = False
    leave: str = ""
    """Why they end after that."""


class Moments:
    """Asked after every update, on all workers."""

    def __init__(self, seconds: float, steps: int | None, reached: int) -> None:
        """Begin after `reached` updates.

        Args:
            seconds: between two saves.
            steps: the same in updates, besides.
            reached: updates that were made before.
        """
        self._seconds, self._steps = seconds, steps
        self._topic = f"checkpoints/{next(_managers)}"
        self._met, self._meets = reached, reached + 1
        self._met_at = self._saved_at = time.monotonic()
        self._said: list[int] = []
        self._asked = False

    def after(self, update: int) -> Verdict:
        """What is to be done after so many updates."""
        if notice.told and not self._asked:
            self._asked = True
            self._barrier.ask("leave", _who(notice.told))
        by_steps = self._steps is not None and update % self._steps == 0
        if update < self._meets:
            return Verdict(save=by_steps)
        found = json.loads(self._agreed(update))
        self._meets = found["meet"]
        return Verdict(save=found["save"] or by_steps, leave=found["leave"])

    def saved(self) -> None:
        """A save has begun."""
        self._saved_at = time.monotonic()

    @property
    def _barrier(self) -> Barrier:
        found = world(CALL).barrier
        assert found is not None, "workers of a collective job have one"
        return found

    def _agreed(self, update: int) -> str:
        first = self._barrier.index == 0
        mine = json.dumps(self._decided(update)) if first else ""
        found = self._barrier.from_first(CALL, f"{self._topic}/{update}", mine)
        if first:
            self._said.append(update)
            if len(self._said) > REMEMBERED:
                self._barrier.drop(f"{self._topic}/{self._said.pop(0)}")
        return found

    def _decided(self, update: int) -> dict[str, Any]:
        """By worker 0."""
        now = time.monotonic()
        between = min(BETWEEN, self._seconds / 4)
        pace = (now - self._met_at) / max(1, update - self._met)
        ahead = max(1, min(FARTHEST, int(between / max(pace, 1e-6))))
        self._met, self._met_at = update, now
        late = now - self._saved_at >= self._seconds
        return {
            # A write that still goes on would make all wait; it is new enough.
            "save": late and not writing.running,
            "leave": self._barrier.asked("leave"),
            "meet": update + ahead,
        }


def _who(signal: str) -> str:
    return f"worker {roles.worker_index()} was told to stop by {signal}"

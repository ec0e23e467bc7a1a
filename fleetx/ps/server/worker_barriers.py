"""Barriers at which workers wait for each other; the first server of a job keeps them."""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fleetx.ps.server.membership import BACK, DEAD, Membership
from fleetx.ps.tables.journal import Journal
from fleetx.ps.wire.messages import REST, from_json, to_json

logger = logging.getLogger(__name__)

POLL = 0.5
KEPT = 8
"""Past barriers of a topic that are remembered, for workers that ask twice."""


Connected = Callable[[], bool]


def always() -> bool:
    """For callers without a connection."""
    return True


def _require(connected: Connected, worker: int) -> None:
    """Nobody waits for a caller that is gone: the thread would be left behind."""
    if not connected():
        raise ConnectionAbortedError(f"worker {worker} hung up while it waited for others")


class WorkerBarriers:
    """Values that all workers agree on, and how far each worker has come.

    With a folder everything is logged, so that a server that is started again knows who has come,
    who is done and who is dead.
    """

    def __init__(self, membership: Membership, folder: Path | None = None) -> None:
        self._membership = membership
        self._changed = threading.Condition()
        self._brought: dict[tuple[str, int], dict[int, float]] = {}
        """Topic and number of a barrier -> worker -> the value it brought."""
        self._first: dict[str, tuple[int, dict[str, str]]] = {}
        """Topic -> which worker stated its facts first, and which."""
        self._clocks: dict[int, int] = {}
        """Worker -> the steps whose gradients it has pushed."""
        self.largest_lead = 0
        """The most steps by which a worker was ahead of the slowest when it went on."""
        self._journal = Journal(folder) if folder else None
        if self._journal is not None:
            for entry in self._journal.records():
                self._apply(from_json(entry.data))
            membership.on_change = self._log_change

    @property
    def identity(self) -> str:
        """Of its log; empty without one."""
        return self._journal.identity if self._journal is not None else ""

    def _apply(self, record: Mapping[str, object]) -> None:
        if "event" in record:
            self._apply_event(str(record["event"]), int(str(record["worker"])))
            return
        if "facts" in record:
            facts: Any = record["facts"]
            self._first.setdefault(str(record["topic"]), (int(str(record["worker"])), dict(facts)))
            return
        topic, number = str(record["topic"]), int(str(record["number"]))
        here = self._brought.setdefault((topic, number), {})
        here[int(str(record["worker"]))] = float(str(record["value"]))
        for old in [key for key in self._brought if key[0] == topic and key[1] < number - KEPT]:
            del self._brought[old]

    def _apply_event(self, event: str, worker: int) -> None:
        if worker >= self._membership.workers:
            return  # of a job in this folder that had more of them
        if event == "finish":
            self._membership.finish(worker)
        elif event in (BACK, DEAD):
            self._membership.restore(worker, event)
        else:
            self._membership.rest(worker, resting=event == REST)

    def _log(self, **record: object) -> None:
        self._write(**record)
        self._apply(record)

    def _write(self, **record: object) -> None:
        if self._journal is not None:
            try:
                self._journal.append(0, [to_json(record)])
            except OSError as error:  # workers must be able to meet and to end all the same
                logger.warning("%s is in no log: %s", record, error)

    def first_facts(
        self, topic: str, worker: int, facts: dict[str, str]
    ) -> tuple[int, dict[str, str]]:
        """Which worker stated its facts about a topic first, and which; waits for nobody."""
        with self._changed:
            if topic not in self._first:
                self._log(topic=topic, worker=worker, facts=facts)
            return self._first[topic]

    def _log_change(self, event: str, worker: int) -> None:
        """Remember who died: a server that is started again would wait for them."""
        with self._changed:
            self._write(event=event, worker=worker)
            self._changed.notify_all()

    def finish(self, worker: int) -> None:
        """A worker is done."""
        with self._changed:
            self._log(event="finish", worker=worker)
            self._changed.notify_all()

    def rest(self, worker: int, resting: bool) -> None:
        """A worker waits at the end of a stretch of its data, or goes on."""
        with self._changed:
            self._log(event=REST if resting else "resume", worker=worker)
            self._changed.notify_all()

    def agree(
        self,
        topic: str,
        number: int,
        worker: int,
        value: float,
        *,
        strict: bool,
        patience: float,
        connected: Connected = always,
    ) -> float:
        """The largest value that any worker brings to this barrier; waits for all of them.

        Args:
            topic: what it is about.
            number: of the barrier among those of its topic.
            worker: who asks.
            value: what it brings.
            strict: a dead worker is an error; else it is not waited for.
            patience: seconds to wait.
            connected: whether the connection on which it asks is still open.
        """
        with self._changed:
            self._log(topic=topic, number=number, worker=worker, value=value)
            self._changed.notify_all()
            here = self._brought[topic, number]

            def complete() -> bool:
                gone = self._membership.finished() if strict else self._membership.absent()
                # Who rests has nothing to say about batches, but comes to the end of the stretch.
                resting = () if topic == REST else self._membership.idle()
                return len({*here, *gone, *resting}) == self._membership.workers

            waited = 0.0
            while not self._changed.wait_for(complete, POLL):
                _require(connected, worker)
                if strict:
                    self._membership.require_alive()
                waited += POLL
                if waited > patience:
                    missing = [w for w in range(self._membership.workers) if w not in here]
                    raise TimeoutError(
                        f"waited {patience:.0f} s for workers {missing} at {topic!r}; look at "
                        "their logs (set FLEETX_TIMEOUT, in seconds, if they are only slow)"
                    )
            return max(here.values())

    def tick(
        self,
        worker: int,
        step: int,
        bound: int,
        done: int,
        *,
        patience: float,
        connected: Connected = always,
    ) -> int:
        """Begin a step; waits while more than ``bound`` steps of the slowest worker are missing.

        Args:
            worker: who begins.
            step: which one.
            bound: by how much it may be ahead of what the slowest has pushed.
            done: steps whose gradients it has pushed itself.
            patience: seconds to wait.
            connected: whether the connection on which it asks is still open.
        """
        with self._changed:
            self._clocks[worker] = max(done, self._clocks.get(worker, 0))
            self._changed.notify_all()
            waited = 0.0
            # A dead worker is not waited for, and may die while we wait.
            while not self._changed.wait_for(lambda: self._lead(step) <= bound, POLL):
                _require(connected, worker)
                waited += POLL
                if waited > patience:
                    raise TimeoutError(
                        f"worker {worker} waited {patience:.0f} s to begin step {step}, which may "
                        f"be {bound} ahead of the slowest (max_staleness), and workers "
                        f"{self._behind(step - bound)} have not pushed that far; look at their "
                        "logs (set FLEETX_TIMEOUT, in seconds, if they are only slow)"
                    )
            lead = self._lead(step)
            self.largest_lead = max(self.largest_lead, lead)
            return lead

    def _behind(self, step: int) -> list[int]:
        return [worker for worker in self._present() if self._clocks.get(worker, 0) < step]

    def _present(self) -> list[int]:
        absent = {*self._membership.absent(), *self._membership.idle()}
        return [w for w in range(self._membership.workers) if w not in absent]

    def _lead(self, step: int) -> int:
        return step - min((self._clocks.get(w, 0) for w in self._present()), default=step)

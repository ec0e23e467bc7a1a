"""What this process does at the moment: its batch, its phase and since when.

Whoever does something that others may have to wait for says so here, which costs a fraction of a
microsecond; `fleetx.launch.reporter` looks twice a second and tells the launcher. Nothing here
needs torch.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

READING = "reading data"
"""Between the end of a batch and the beginning of the next, the process is the script's."""
STARTING = "starting"
"""Before the first batch."""
DRIVING = "in forward and backward"
"""A whole batch runs the plan's own way."""
UPDATING = "in the update"
"""From the end of the last backward to the end of the batch."""

listeners: list[Callable[[str], None]] = []
"""Called with what begins, by the thread that does it; tools that measure put theirs here."""


@dataclass
class _Record:
    doing: tuple[str, float] = (STARTING, 0.0)
    """What, and since when; one object, so that another thread sees both of the same moment."""
    batches: int = 0
    """Batches that have begun."""
    calls: int = 0
    """Calls of a model with gradients, and of whole batches."""
    ended: int = 0
    """Batches that came to their end."""
    updates: int = 0
    """Those of them that moved the parameters."""
    meetings: int = 0
    """How often all workers were waited for outside of collectives, the current time included."""
    meeting: str = ""
    """The call in which they are waited for now."""
    owners: dict[str, str] = field(default_factory=dict)
    """Process groups by their names -> the strategy that exchanges in them."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What else must be the same on ranks that wait for each other."""
    warning: str = ""
    """What the console shall say, whichever worker knows it."""
    leaves: bool = False
    """Whether it leaves by itself when it is told to stop, after it has saved its work."""


_record = _Record()


def begin_batch() -> None:
    """A batch begins, with its forward."""
    _record.batches += 1
    enter("in forward")


def call() -> None:
    """A script calls the model, or gives it a whole batch."""
    _record.calls += 1


def end_batch(updated: bool) -> None:
    """A batch is over; the process is the script's again."""
    _record.ended += 1
    _record.updates += updated
    enter(READING)


def enter(doing: str) -> None:
    """From now on the process does this, until it says something else."""
    _record.doing = doing, time.monotonic()
    for hear in listeners:
        hear(doing)


def current() -> str:
    """What this process does at the moment."""
    return _record.doing[0]


@contextmanager
def during(doing: str) -> Iterator[None]:
    """Inside, the process does this; afterwards, what it did before."""
    before = _record.doing
    enter(doing)
    try:
        yield
    finally:
        enter(before[0])


@contextmanager
def meeting(call: str) -> Iterator[None]:
    """Inside, the process waits until all workers have made the same call."""
    _record.meetings += 1
    before, _record.meeting = _record.meeting, call
    try:
        with during(f"in {call}"):
            yield
    finally:
        _record.meeting = before


def own(group: str, strategy: str) -> None:
    """A strategy exchanges in a process group; the last one to say so is told."""
    _record.owners[group] = strategy


def note(topic: str, fact: Any) -> None:
    """Something that must be equal where ranks wait for each other; compared only if they stop."""
    _record.notes[topic] = fact


def warn(text: str) -> None:
    """Let the launcher say something of the whole job, which shows the log of worker 0 alone."""
    _record.warning = text


def will_leave(by_itself: bool) -> None:
    """Whether this process heeds SIGTERM: it saves, and leaves with the others."""
    _record.leaves = by_itself


def batches() -> int:
    """How many have begun."""
    return _record.batches


def forget() -> None:
    """A new job begins in this process."""
    fresh = _Record()
    _record.__dict__.update(fresh.__dict__)


def now() -> dict[str, Any]:
    """All of it, as plain values; nothing in a script that does not use fleetx."""
    doing, since = _record.doing
    if not since:
        return {}
    return {
        "doing": doing,
        "since": since,
        "batches": _record.batches,
        "calls": _record.calls,
        "ended": _record.ended,
        "updates": _record.updates,
        "meetings": _record.meetings,
        "meeting": _record.meeting,
        "owners": dict(_record.owners),
        "leaves": _record.leaves,
        "warning": _record.warning,
        "notes": {topic: str(fact) for topic, fact in dict(_record.notes).items()},
    }

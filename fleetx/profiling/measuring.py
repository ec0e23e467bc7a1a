"""The windows of a measurement: steps that warm up, steps that are timed, steps that are traced."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from fleetx.profiling.phases import Phases
from fleetx.profiling.tracing import Tracer
from fleetx.profiling.trying import SECONDS

TRACE = "trace-rank{}.json.gz"
WARM_UP = {"cpu": 3, "cuda": 14}
"""Steps before those that count; a card captures and compiles meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is measured."""

    steps: int = 10
    """Steps that are timed."""
    warmup: int | None = None
    """Steps before them; None: what the device needs."""
    traced: int = 4
    """Steps after them, under torch's profiler."""
    tries: bool = True
    """Whether flags are tried."""
    named: tuple[str, ...] = ()
    """Only these flags; all that leave the update as it is if empty."""
    seconds: float = SECONDS
    """After which no other flag is tried."""

    def warmups(self, device: torch.device) -> int:
        """Steps that do not count."""
        most = max(WARM_UP.values())
        return WARM_UP.get(device.type, most) if self.warmup is None else self.warmup


class Measuring:
    """Counts the steps of a model, and measures them window by window.

    Args:
        wanted: how many of each kind.
        phases: what the script's thread does.
        device: where it computes.
        file: takes the trace.
        keep: is given each timed step.
        say: is told what begins.
    """

    def __init__(
        self,
        wanted: Wanted,
        phases: Phases,
        device: torch.device,
        file: Path,
        *,
        keep: Callable[[Mapping[str, float]], None],
        say: Callable[[str], None] = lambda said: None,
    ) -> None:
        self._phases, self._device, self._file = phases, device, file
        self._keep, self._say = keep, say
        self._timed_from = wanted.warmups(device)
        self._traced_from = self._timed_from + wanted.steps
        self._until = self._traced_from + wanted.traced
        self._done = 0
        self._tracer: Tracer | None = None
        self._announce()
        phases.restart()

    def ended(self) -> bool:
        """A step is over; whether it was the last one that is wanted."""
        self._done += 1
        if self._done in (self._timed_from, self._traced_from, self._until):
            self._settle()
        lap = self._phases.lap()
        if self._timed_from < self._done <= self._traced_from:
            self._keep(lap)
        self._announce()
        if self._done == self._traced_from < self._until:
            self._trace()
        if self._done >= self._until:
            self.close()
        self._phases.restart()
        return self._done >= self._until

    def close(self) -> None:
        """Write the trace, of as many steps as there were."""
        if self._tracer is None:
            return
        tracer, self._tracer = self._tracer, None
        self._phases.marks = False
        beside = self._file.with_name(f"unfinished-{self._file.name}")
        tracer.stop(beside)
        os.replace(beside, self._file)

    def _trace(self) -> None:
        self._tracer = Tracer(self._device)
        self._tracer.start()
        self._phases.marks = True
        self._phases.lap()  # the mark from which the first step counts

    def _settle(self) -> None:
        """A card works behind the script; a window ends when it has caught up."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _announce(self) -> None:
        begins = {
            0: ("warming up", self._timed_from),
            self._timed_from: ("timing", self._traced_from - self._timed_from),
            self._traced_from: ("tracing", self._until - self._traced_from),
        }
        doing, count = begins.get(self._done, ("", 0))
        if count:
            self._say(f"{doing}: {count} steps")

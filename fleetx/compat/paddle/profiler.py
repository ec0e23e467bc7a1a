"""``paddle.profiler``, over ``torch.profiler``."""

from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import profiler

__all__ = [
    "Profiler",
    "ProfilerState",
    "ProfilerTarget",
    "RecordEvent",
    "SortedKeys",
    "export_chrome_tracing",
    "make_scheduler",
]


class ProfilerTarget(Enum):
    """What is watched."""

    CPU, GPU, CUSTOM_DEVICE = 0, 1, 2


class ProfilerState(Enum):
    """What a profiler does in a step."""

    CLOSED, READY, RECORD, RECORD_AND_RETURN = 0, 1, 2, 3


class SortedKeys(Enum):
    """How a table is ordered."""

    CPUTotal = "cpu_time_total"
    CPUAvg = "cpu_time"
    CPUMax = "cpu_time_total"
    CPUMin = "cpu_time"
    GPUTotal = "self_device_time_total"
    GPUAvg = "device_time"


_STATES = {
    ProfilerState.CLOSED: profiler.ProfilerAction.NONE,
    ProfilerState.READY: profiler.ProfilerAction.WARMUP,
    ProfilerState.RECORD: profiler.ProfilerAction.RECORD,
    ProfilerState.RECORD_AND_RETURN: profiler.ProfilerAction.RECORD_AND_SAVE,
}


def make_scheduler(
    *, closed: int, ready: int, record: int, repeat: int = 0, skip_first: int = 0
) -> Callable[[int], ProfilerState]:
    """Rounds of steps: nothing, getting ready, recording."""
    length = closed + ready + record

    def state_of(step: int) -> ProfilerState:
        at = step - skip_first
        if at < 0 or (repeat and at // length >= repeat):
            return ProfilerState.CLOSED
        at %= length
        if at < closed:
            return ProfilerState.CLOSED
        if at < closed + ready:
            return ProfilerState.READY
        return ProfilerState.RECORD if at < length - 1 else ProfilerState.RECORD_AND_RETURN

    return state_of


def export_chrome_tracing(dir_name: str, worker_name: str | None = None) -> Callable[[Any], None]:
    """Write a trace to a folder whenever a round of steps is over."""

    def write(found: "Profiler") -> None:
        folder = Path(dir_name)
        folder.mkdir(parents=True, exist_ok=True)
        found.export(str(folder / f"{worker_name or 'worker'}_step{found.step_num}.json"))

    return write


class RecordEvent:
    """A stretch of the script, by name."""

    def __init__(self, name: str, event_type: Any = None) -> None:
        self._name = name
        self._inside: Any = None

    def begin(self) -> None:
        """It begins."""
        self._inside = profiler.record_function(self._name)
        self._inside.__enter__()

    def end(self) -> None:
        """It ends."""
        if self._inside is not None:
            self._inside.__exit__(None, None, None)
            self._inside = None

    def __enter__(self) -> "RecordEvent":
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


class Profiler:
    """Takes times of operators, in all steps or in those that a scheduler chooses."""

    def __init__(
        self,
        *,
        targets: Iterable[ProfilerTarget] | None = None,
        scheduler: Any = None,
        on_trace_ready: Callable[[Any], None] | None = None,
        timer_only: bool = False,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_flops: bool = False,
        **idle: Any,
    ) -> None:
        wanted = set(targets or (ProfilerTarget.CPU, ProfilerTarget.GPU))
        kinds = [profiler.ProfilerActivity.CPU]
        if ProfilerTarget.GPU in wanted and torch.cuda.is_available():
            kinds.append(profiler.ProfilerActivity.CUDA)
        if isinstance(scheduler, (list, tuple)):
            first, behind = int(scheduler[0]), int(scheduler[1])
            scheduler = make_scheduler(
                closed=0, ready=0, record=behind - first, repeat=1, skip_first=first
            )
        self.step_num = 0
        self._ready = on_trace_ready
        self._timer_only = timer_only
        self._inner = profiler.profile(
            activities=kinds,
            schedule=None if scheduler is None else lambda step: _STATES[scheduler(step)],
            on_trace_ready=lambda _: self._tell(),
            record_shapes=record_shapes,
            profile_memory=profile_memory,
            with_flops=with_flops,
        )

    def _tell(self) -> None:
        if self._ready is not None:
            self._ready(self)

    def start(self) -> None:
        """Begin."""
        if not self._timer_only:
            self._inner.start()

    def stop(self) -> None:
        """End."""
        if not self._timer_only:
            self._inner.stop()

    def step(self, num_samples: int | None = None) -> None:
        """One step of training is over."""
        self.step_num += 1
        if not self._timer_only:
            self._inner.step()

    def step_info(self, unit: str | None = None) -> str:
        """How many steps there were."""
        return f"step {self.step_num}"

    def export(self, path: str, format: str = "json") -> None:
        """Write the trace."""
        self._inner.export_chrome_trace(path)

    def summary(self, sorted_by: SortedKeys = SortedKeys.CPUTotal, **_: Any) -> str:
        """A table of the operators, which goes to the screen too."""
        text = str(self._inner.key_averages().table(sort_by=sorted_by.value, row_limit=30))
        print(text)  # noqa: T201 (as Paddle does)
        return text

    def __enter__(self) -> "Profiler":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

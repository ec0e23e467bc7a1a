"""``paddle.fluid.profiler``, over ``torch.profiler``."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fleetx.compat.notes import note

_log = logging.getLogger("fleetx")
_running: list[profile] = []
_KEYS = {
    "total": "self_cpu_time_total",
    "ave": "cpu_time",
    "max": "cpu_time_total",
    "min": "cpu_time_total",
    "calls": "count",
}


def start_profiler(state: str = "CPU", tracer_option: str = "Default") -> None:
    """Begin to take times; ``state`` is "CPU", "GPU" or "All"."""
    if state not in {"CPU", "GPU", "All"}:
        raise ValueError(f"start_profiler({state!r}): the state is 'CPU', 'GPU' or 'All'.")
    if _running:
        return
    activities = [ProfilerActivity.CPU]
    if state != "CPU" and torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    _running.append(profile(activities=activities))
    _running[-1].__enter__()


def stop_profiler(sorted_key: str | None = None, profile_path: str = "/tmp/profile") -> None:
    """End it: a table goes to the log, a trace to ``profile_path``."""
    if not _running:
        return
    found = _running.pop()
    found.__exit__(None, None, None)
    key = _KEYS.get(sorted_key or "total", "self_cpu_time_total")
    _log.info("%s", found.key_averages().table(sort_by=key, row_limit=30))
    if profile_path:
        Path(profile_path).parent.mkdir(parents=True, exist_ok=True)
        found.export_chrome_trace(str(profile_path))


def reset_profiler() -> None:
    """Forget the times so far."""
    if _running:
        stop_profiler(profile_path="")
        start_profiler()


@contextmanager
def profiler(
    state: str = "CPU",
    sorted_key: str | None = None,
    profile_path: str = "/tmp/profile",
    tracer_option: str = "Default",
) -> Iterator[None]:
    """Take times inside."""
    start_profiler(state, tracer_option)
    try:
        yield
    finally:
        stop_profiler(sorted_key, profile_path)


@contextmanager
def cuda_profiler(output_file: str, output_mode: Any = None, config: Any = None) -> Iterator[None]:
    """Nvprof's own controls, which torch does not set."""
    note("profiler.cuda_profiler", "run the script under nsys; here it does nothing.")
    yield


class ProfilerOptions(dict[str, Any]):
    """Options of Paddle's profiler."""


def get_profiler(*args: Any, **kwargs: Any) -> Any:
    """A profiler by the options of Paddle's flags."""
    return profiler()

"""Limits of what may hang, which are longer while the machine has more to do than it has cores."""

import os
from pathlib import Path

_STAT = Path("/proc/stat")


def stretched(seconds: float) -> float:
    """The limit, as many times as long as processes have to wait for a core.

    The load of the last minute tells, and so does what other guests of a shared machine take; a
    limit that is over asks again before it gives up.
    """
    return seconds * max(1.0, _waiting()) / (1.0 - _taken())


def _waiting() -> float:
    """Processes that want a core, for each core."""
    if not hasattr(os, "getloadavg") or not hasattr(os, "sched_getaffinity"):
        return 1.0
    return os.getloadavg()[0] / len(os.sched_getaffinity(0))


def _times() -> tuple[int, int]:
    """Ticks that others took from this machine, and all ticks; Linux alone knows."""
    if not _STAT.exists():
        return 0, 0
    ticks = [int(word) for word in _STAT.read_text().splitlines()[0].split()[1:9]]
    return ticks[7], sum(ticks)


_begun = _times()


def _taken() -> float:
    """The share that others took since this process began; nine tenths at most."""
    taken, every = (now - then for now, then in zip(_times(), _begun, strict=True))
    return min(0.9, taken / every) if every > 100 else 0.0

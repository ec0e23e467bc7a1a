"""Limits of what may hang, which are longer while the machine has more to do than it has cores."""

import os


def stretched(seconds: float) -> float:
    """The limit, as many times as long as processes have to wait for a core.

    The load of the last minute tells; a limit that is over asks again before it gives up.
    """
    waiting = os.getloadavg()[0] / len(os.sched_getaffinity(0)) if _knows_load() else 1.0
    return seconds * max(1.0, waiting)


def _knows_load() -> bool:
    return hasattr(os, "getloadavg") and hasattr(os, "sched_getaffinity")

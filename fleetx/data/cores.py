"""How many cores this process may use: in a container often fewer than the machine has."""

import os
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")
"""Where Linux tells a container what processor time it is given."""


def usable(group: Path = _GROUP) -> int:
    """Cores, at least one; of a share such as 2.5 cores the whole ones.

    Args:
        group: the control group of this process; another one for tests.
    """
    # What a scheduler or taskset allows, where it can be asked.
    ask = getattr(os, "sched_getaffinity", None)
    cores = len(ask(0)) if ask else os.cpu_count() or 1
    return max(1, min(cores, int(_share(group) or cores)))


def _share(group: Path) -> float | None:
    """Cores' worth of time; None without a limit."""
    numbers = _words(group / "cpu.max")
    if not numbers:  # the older interface has a file for each
        numbers = [
            *_words(group / "cpu" / "cpu.cfs_quota_us"),
            *_words(group / "cpu" / "cpu.cfs_period_us"),
        ]
    match numbers:
        case [quota, period] if quota.isdecimal() and period.isdecimal() and int(period):
            return int(quota) / int(period)
        case _:  # "max", or -1
            return None


def _words(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []

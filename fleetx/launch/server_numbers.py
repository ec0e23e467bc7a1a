"""How many servers and workers suit the cores of this machine, for ``--server_num auto``."""

import math
import os
from dataclasses import replace
from pathlib import Path

from fleetx.launch.arguments import AUTO, Arguments

WORKERS_OF_A_SERVER = 2
"""As measured by ``benchmarks/ps_scaling.py`` with batches of 512 examples.

A worker's process takes five to six times the processor time of one server for a batch, with two
servers as with four, for each batch asks all of them. With half as many servers as workers, all
servers together take about a third of the processor time of a job.
"""
CORES_OF_A_WORKER = 1.5
"""A worker computes on one core, and a thread of it talks to the servers meanwhile."""
QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Where a container is told how much processor time it has: microseconds, and of how many."""


def complete(arguments: Arguments) -> tuple[Arguments, tuple[str, ...]]:
    """The flags with numbers in the place of ``auto``, and what to say about it."""
    if AUTO not in (arguments.server_num, arguments.worker_num) or _listed(arguments):
        return arguments, ()
    available = cores()
    servers, workers = numbers(arguments.server_num, arguments.worker_num, available)
    chosen = f"{_counted(servers, 'server')} and {_counted(workers, 'worker')}"
    note = (
        f"fleetrun: {chosen} for {_counted(available, 'core')}: a server for "
        f"{WORKERS_OF_A_SERVER} workers, which take {CORES_OF_A_WORKER} cores each; --server_num "
        "and --worker_num set other numbers"
    )
    return replace(arguments, server_num=servers, worker_num=workers), (note,)


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number > 1)}"


def _listed(arguments: Arguments) -> bool:
    return arguments.servers is not None or arguments.workers is not None


def numbers(servers: int | str | None, workers: int | str | None, cores: int) -> tuple[int, int]:
    """Servers and workers for so many cores; a number that was given stays."""
    if isinstance(servers, int):
        fit = int((cores - servers) / CORES_OF_A_WORKER)
        return servers, max(1, min(WORKERS_OF_A_SERVER * servers, fit))
    if not isinstance(workers, int):
        workers = max(1, int(cores / (CORES_OF_A_WORKER + 1 / WORKERS_OF_A_SERVER)))
    wanted = math.ceil(workers / WORKERS_OF_A_SERVER)
    return max(1, min(wanted, int(cores - workers * CORES_OF_A_WORKER) or 1)), workers


def cores() -> int:
    """Cores that this process may use, as far as it is told."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(here, _quota()))


def _quota() -> int:
    try:
        share, period = QUOTA.read_text().split()
        return round(int(share) / int(period))
    except (OSError, ValueError):  # no such limit
        return 1 << 30

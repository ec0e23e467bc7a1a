"""A worker behind a link: does what lines on its input say, and answers each with a line.

``python -m benchmarks.exchanges.worker RANK WORKERS``, started by ``links.Lab``.
"""

import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from benchmarks.exchanges.links import DEVICE, address

LIMIT = timedelta(minutes=2)
FIRST = 10
"""Workers come before other work of the machine, in real time: a worker that was woken by a message
else waits for the end of somebody's turn, 4 ms, and these are measured with the links."""


def main() -> None:
    """Serve until nobody asks any more."""
    # Workers of one name would take themselves for one machine; a name of digits needs no lookup.
    socket.sethostname(address(int(sys.argv[1])))
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(FIRST))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what anybody prints is no answer
    print("here", file=answers)
    serve: Callable[[dict[str, Any]], Any] | None = None
    for line in sys.stdin:
        try:
            if serve is None:
                serve = _served()
            answer = serve(json.loads(line)) or {}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)
    os._exit(0)  # the others may be gone: there is nobody to say goodbye to


def _served() -> Callable[[dict[str, Any]], Any]:
    import torch
    import torch.distributed as dist

    from benchmarks.exchanges import collectives, jobs

    torch.set_num_threads(1)
    running: list[jobs.Job] = []

    def join(command: dict[str, Any]) -> None:
        dist.init_process_group("gloo", timeout=LIMIT)

    def build(command: dict[str, Any]) -> dict[str, Any]:
        running.append(jobs.Job(command["model"], command["settings"]))
        return {}

    def steps(command: dict[str, Any]) -> dict[str, Any]:
        return running[0].timed(command["updates"])

    def end(command: dict[str, Any]) -> None:
        while running:
            running.pop().stop()

    known = {
        "join": join,
        "build": build,
        "steps": steps,
        "end": end,
        "collective": collectives.timed,
    }
    return lambda command: known[command["do"]](command)


def sent_and_received() -> tuple[int, int]:
    """Bytes that passed this worker's end of the link so far, headers included."""
    with open("/proc/net/dev") as table:
        row = next(line for line in table if line.strip().startswith(f"{DEVICE}:"))
    numbers = row.split(":")[1].split()
    return int(numbers[8]), int(numbers[0])


def together() -> float:
    """Wait for all workers; the time at which this one may begin."""
    import torch.distributed as dist

    dist.barrier()
    return time.perf_counter()


if __name__ == "__main__":
    main()

"""Waiting until the threads of this process have nothing left to do.

A collective returns as soon as its result is there, while the thread of torch that carried it out
still lets go of its tensors, for which it needs the interpreter. A thread that comes too late for
that, because the interpreter has ended, aborts the whole process: a job that has done its work
would end with SIGABRT. On a busy machine that happens.
"""

import os
import threading
import time
from pathlib import Path

_THREADS = Path("/proc/self/task")


def wait_for_idle_threads(limit: float = 2.0) -> bool:
    """Let other threads run until none of them wants to; not longer than ``limit`` seconds.

    Returns:
        Whether they are idle; False, too, where the system does not tell.
    """
    end, calm, pause = time.monotonic() + limit, 0, 0.001
    while calm < 2 and time.monotonic() < end:
        time.sleep(pause)  # gives the interpreter to whoever waits for it
        pause = min(2 * pause, 0.02)  # looking around takes time from them on a busy machine
        busy = _busy()
        if busy is None:
            return False
        calm = 0 if busy else calm + 1
    return calm == 2


def _busy() -> bool | None:
    """Whether another thread runs or waits for a processor; None if that cannot be known."""
    own = str(threading.get_native_id())
    try:
        return any(_state(task) == b"R" for task in os.listdir(_THREADS) if task != own)
    except OSError:
        return None if not _THREADS.exists() else True  # a thread ended just now


def _state(task: str) -> bytes:
    """One letter of proc(5); the name before it, in parentheses, may hold anything."""
    with open(f"{_THREADS}/{task}/stat", "rb", buffering=0) as file:
        return file.read().rpartition(b")")[2].split()[0]

"""Streams of a card that run beside each other, instead of one after the other in one queue.

The driver deals a process's streams out to eight queues unless it is told otherwise before it
starts, and streams that share one wait for each other: those of NCCL, of copies and of decoding
for the step that trains. Measured with images that the card decodes: a third of the speed.
"""

import ctypes
import os
from collections.abc import Mapping, MutableMapping

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
MOST = 32
"""As many as the driver has; without the variable it takes eight."""
_NOT_STARTED = 3
"""CUDA_ERROR_NOT_INITIALIZED."""


def use_all_queues(environ: MutableMapping[str, str] = os.environ) -> None:
    """Let the driver take all of them, unless the user has chosen, or it has started already."""
    if not environ.get(VARIABLE) and not _driver_runs():
        environ[VARIABLE] = str(MOST)


def why_few_queues(environ: Mapping[str, str] = os.environ) -> str:
    """Why streams may wait for each other, and what to do; empty where they need not."""
    given = environ.get(VARIABLE, "")
    if given.isdecimal() and int(given) >= MOST:
        return ""
    if given:
        return f"{VARIABLE}={given} is set; leave it unset, or set it to {MOST}"
    return (
        "this process asked for its GPUs (torch.cuda.is_available() is enough) before "
        "fleet.init(); call fleet.init() first, start the script by fleetrun, or set "
        f"{VARIABLE}={MOST} before it starts"
    )


def _driver_runs() -> bool:
    """Whether somebody in this process has started CUDA, torch or another library."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # no GPU
        return False
    status: int = driver.cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p()))
    return status != _NOT_STARTED

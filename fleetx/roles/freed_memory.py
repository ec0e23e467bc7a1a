"""Memory that tensors of a CPU leave behind stays with the process, for the next step.

The C library gives large blocks back to the system as soon as they are free. The next step asks
for as many, and each of their pages costs a fault and is cleared first: thousands of them in a
step, and a third of its time where layers are wide. ``mallopt`` is the library's own switch.
"""

import ctypes
import os
from collections.abc import Mapping

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's malloc.h: free memory above which it is given back, and the size above which a
block is asked of the system and given back by itself."""
_ALL = 2**31 - 1
_BLOCKS = (1 << 28, 1 << 25)
"""Old versions take no more than the second."""
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Variables by which a user has chosen, which the library has read before us."""


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Let the process keep what tensors free; whether it does.

    Not where the user has chosen otherwise, and not where the C library is another one.
    """
    if any(environ.get(name) for name in _CHOSEN):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    blocks = any(set_option(_MMAP_THRESHOLD, size) for size in _BLOCKS)
    return blocks and bool(set_option(_TRIM_THRESHOLD, _ALL))


def return_freed_memory() -> None:
    """Give back what is free now, after something large that does not come again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

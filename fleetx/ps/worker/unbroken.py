"""Steps that Ctrl-C must not cut in two."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def unbroken() -> Iterator[None]:
    """Ctrl-C inside is heard at the end; what is inside must be short, and ask nobody.

    Only the main thread is interrupted, and only where a handler of Python does it.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(signal.SIGINT, came[0])

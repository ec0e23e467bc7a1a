"""Writing to the terminal without ever failing because of it."""

import os
import sys
from collections.abc import Callable
from typing import TextIO

heard: list[Callable[[str], None]] = []
"""Called with every warning."""


def say(text: str) -> None:
    """Prints a line on stdout."""
    _write(sys.stdout, text + "\n")


def warn(text: str) -> None:
    """Prints a line on stderr under the launcher's name."""
    _write(sys.stderr, f"fleetrun: {text}\n")
    for listen in heard:
        listen(text)


def terminal() -> str | None:
    """The path of the terminal to which stdout goes, if it goes to one."""
    try:
        return os.ttyname(sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return None


def raw(data: bytes) -> None:
    """Passes bytes of a worker through as they are, carriage returns included."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except (OSError, ValueError, AttributeError):
        _abandon(sys.stdout)


def _write(stream: TextIO | None, text: str) -> None:
    try:
        if stream is not None:
            stream.write(text)
            stream.flush()
    except (OSError, ValueError):
        _abandon(stream)


def _abandon(stream: TextIO | None) -> None:
    # The reader of our pipe is gone. The descriptor is pointed elsewhere so that
    # the flush at interpreter exit does not change the exit code to 120.
    try:
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):
        pass

"""Whether a script computes at once or writes a program."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class _Mode:
    static: bool | None = None
    """None while the script has not said it: Paddle 1 begins static, Paddle 2 does not."""


_mode = _Mode()


def enable_static() -> None:
    """What follows is written into programs."""
    _mode.static = True


def disable_static(place: object = None) -> None:
    """What follows is computed at once."""
    _mode.static = False


def is_static() -> bool:
    """Whether a program is written."""
    return bool(_mode.static)


def in_dynamic_mode() -> bool:
    """Whether things are computed at once, as Paddle 2 begins."""
    return not _mode.static


def in_dygraph_mode() -> bool:
    """The same question of Paddle 1, which begins static."""
    return _mode.static is False


@contextmanager
def dygraph_guard(place: object = None) -> Iterator[None]:
    """Compute at once inside."""
    before, _mode.static = _mode.static, False
    try:
        yield
    finally:
        _mode.static = before


def forget() -> None:
    """Begin as a new process does."""
    _mode.static = None

"""One process of a machine at a time."""

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Wait until no other process of this machine is inside; a killed one lets go by itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""One job at a time writes into the folder of a save.

Two jobs that save into one folder at one moment would replace each other's pieces, and what both
have acknowledged could not be loaded. The first worker holds the folder while its servers write,
and each server its own part: it may write still when its worker is dead.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fleetx.ps.tables.process_lock import TakenError, locked, this_process

WORKER = "worker"
"""Who writes the list of a save."""

_held: set[Path] = set()
"""Locks of this process: for the kernel they are no obstacle to itself."""


class SaveInUseError(ValueError):
    """Another job that lives saves into the same folder."""


def server(number: int) -> str:
    """The name of a server among those who write into a folder."""
    return f"server-{number}"


@contextlib.contextmanager
def held(folder: Path, who: str) -> Iterator[None]:
    """Be the only one of this name who saves into a folder.

    The kernel lets go of the lock of a process that dies; the file that it leaves is in nobody's
    way.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.resolve() / f".saving-{who}"
    if path in _held:
        raise _in_use(folder, this_process())
    _held.add(path)
    try:
        file = _locked(folder, path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # first, so that nobody locks what is about to go
            file.close()
    finally:
        _held.discard(path)


def _locked(folder: Path, path: Path) -> IO[str]:
    """The lock file, which is ours and still has its name."""
    while True:
        try:
            file = locked(path, folder)
        except TakenError as error:
            raise _in_use(folder, error.owner) from None
        if _is_at(file, path):
            return file
        file.close()  # whoever had it before was just done


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _in_use(folder: Path, owner: str) -> SaveInUseError:
    return SaveInUseError(
        f"{folder} cannot be saved into: another job saves there now ({owner}), and what "
        "both write could not be loaded; give each job a folder of its own, or save again when "
        "that one is done"
    )

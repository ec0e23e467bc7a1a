"""One job at a time writes into the folder of a save.

Two jobs that save into one folder at one moment would replace each other's pieces, and what both
have acknowledged could not be loaded. The first worker holds the folder while its servers write,
and each server its own part: it may write still when its worker is dead.
"""

import contextlib
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import IO

logger = logging.getLogger(__name__)

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
        raise _in_use(folder, f"process {os.getpid()} on {socket.gethostname()}")
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
        file = path.open("a+", encoding="utf-8")
        try:
            # Of the process and not of the open file, so that what it forks does not keep it.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            owner = file.read().strip() or "another process"
            file.close()
            raise _in_use(folder, owner) from None
        except OSError as error:
            logger.warning("%s cannot be locked (%s): let no other job save there", folder, error)
        if _is_at(file, path):
            break
        file.close()  # whoever had it before was just done
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    return file


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

"""One server at a time writes to a folder of state.

Two jobs with one ``FLEETX_PS_STATE`` would take each other's tables for their own, write into one
log, and the first to end would empty the folder of the other.
"""

import fcntl
import logging
import os
import socket
from pathlib import Path
from typing import IO

logger = logging.getLogger(__name__)

_held: dict[Path, IO[str]] = {}
"""Folder -> the open file that bears the lock; the kernel lets go of it however we end."""


class StateInUseError(RuntimeError):
    """Another server that lives writes to the same folder."""


def hold(folder: Path) -> None:
    """Be the only process that keeps state in a folder, until ``release`` or the end of it."""
    folder = folder.absolute()
    if folder in _held:
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the folder, whose files are all accounted for. Of the process and not of the open file,
    # so that what it forks does not keep it.
    file = folder.with_name(f"{folder.name}.lock").open("a+", encoding="utf-8")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.seek(0)
        owner = file.read().strip() or "another process"
        file.close()
        raise StateInUseError(
            f"FLEETX_PS_STATE={folder.parent}: {folder.name} of this folder belongs to a server "
            f"that is running ({owner}), and two in one folder would lose what both have "
            "acknowledged; set FLEETX_PS_STATE to a folder of its own for each job, or end that "
            "server first"
        ) from None
    except OSError as error:
        logger.warning("%s cannot be locked (%s): let no other job use it", folder, error)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}")
    file.flush()
    _held[folder] = file


def release() -> None:
    """Let others have all that this process holds."""
    while _held:
        _held.popitem()[1].close()

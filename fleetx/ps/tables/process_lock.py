"""Files that one process has locked at a time, and in which it says who it is.

The kernel lets go of the lock of a process however that ends.
"""

import fcntl
import logging
import os
import socket
from pathlib import Path
from typing import IO

logger = logging.getLogger(__name__)


class TakenError(Exception):
    """Another process that lives has locked the file."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner
        """Who it said it was."""


def this_process() -> str:
    """Who has locked a file of this process."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def locked(path: Path, folder: Path) -> IO[str]:
    """The open file, locked for this process alone until it is closed.

    Args:
        path: the file.
        folder: what it stands for, for a warning where locks do not work.

    Raises:
        TakenError: another process has it.
    """
    file = path.open("a+", encoding="utf-8")
    try:
        # Of the process and not of the open file, so that what it forks does not keep it.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.seek(0)
        owner = file.read().strip() or "another process"
        file.close()
        raise TakenError(owner) from None
    except OSError as error:
        logger.warning("%s cannot be locked (%s): let no other job use it", folder, error)
    file.truncate(0)
    file.write(this_process())
    file.flush()
    return file

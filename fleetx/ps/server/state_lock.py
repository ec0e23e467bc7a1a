"""One server at a time writes to a folder of state.

Two jobs with one ``FLEETX_PS_STATE`` would take each other's tables for their own, write into one
log, and the first to end would empty the folder of the other.
"""

from pathlib import Path
from typing import IO

from fleetx.ps.tables.process_lock import TakenError, locked

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
    try:  # beside the folder, whose files are all accounted for
        _held[folder] = locked(folder.with_name(f"{folder.name}.lock"), folder)
    except TakenError as error:
        raise StateInUseError(
            f"FLEETX_PS_STATE={folder.parent}: {folder.name} of this folder belongs to a server "
            f"that is running ({error.owner}), and two in one folder would lose what both have "
            "acknowledged; set FLEETX_PS_STATE to a folder of its own for each job, or end that "
            "server first"
        ) from None


def release() -> None:
    """Let others have all that this process holds."""
    while _held:
        _held.popitem()[1].close()

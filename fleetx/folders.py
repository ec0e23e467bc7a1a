"""Folders that take the place of others, of which one is always complete."""

import os
import shutil
from pathlib import Path


def put_in_place(made: Path, target: Path, *, old: Path) -> None:
    """Give a complete folder its name; killed at any point, it or its predecessor is found.

    A folder cannot be replaced in one step as a file can, so the predecessor steps aside.

    Args:
        made: the complete folder.
        target: the name that it gets.
        old: where the one with that name goes; the caller removes it, or finds it after a death.
    """
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.replace(old)
    made.replace(target)
    sync_folder(target.parent)  # a log that this folder stands for may be removed next


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)

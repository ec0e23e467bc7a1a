"""Folders of a save, which appear complete or not at all, and the JSON files in them."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleetx.folders import put_in_place, sync_folder
from fleetx.ps.tables import checksums
from fleetx.ps.tables.checksums import DamagedError

MANIFEST = "manifest.json"
"""What is written last, so that a folder without it is not complete."""
TABLES = "tables"
"""The folder of checkpoints and of models for inference that is a save."""


@contextlib.contextmanager
def filled(folder: Path, *, keep_old: bool = False) -> Iterator[Path]:
    """An empty folder to fill, which gets this name when that has succeeded.

    Args:
        folder: its name.
        keep_old: let the one that had the name be found beside it, until ``remove_old``: it is a
            part of something larger that is not complete yet.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        if keep_old and old_of(folder).exists():
            # Of a larger whole that was never completed: the older one is still what counts.
            shutil.rmtree(folder, ignore_errors=True)
        put_in_place(partial, folder, old=old_of(folder))
        if not keep_old:
            shutil.rmtree(old_of(folder), ignore_errors=True)
    except Exception:
        shutil.rmtree(partial, ignore_errors=True)  # the disk may be full because of it
        raise


def found(folder: Path) -> Path:
    """Where the contents of a folder are: there, or beside it if a dying process got that far."""
    old = old_of(folder)
    return old if not folder.exists() and (old / MANIFEST).is_file() else folder


def old_of(folder: Path) -> Path:
    """Where the predecessor of a folder is while it is replaced."""
    return folder.with_name(f"{folder.name}.old")


def write_json(path: Path, value: dict[str, Any]) -> str:
    """Write all of it or nothing, with its checksum, which is returned."""
    sealed = checksums.sealed(value)
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(sealed, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)
    return str(sealed[checksums.KEY])


def read_json(path: Path) -> dict[str, Any]:
    """The inverse of ``write_json``; ``DamagedError`` unless it is as it was written."""
    return checksums.opened(read_unchecked(path), path)


def read_unchecked(path: Path) -> dict[str, Any]:
    """What a JSON file says, with its checksum if it has one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path} cannot be read ({error}); is this a complete save?") from None
    if not isinstance(value, dict):
        raise DamagedError(f"{path} is damaged: it holds no JSON object")
    return value

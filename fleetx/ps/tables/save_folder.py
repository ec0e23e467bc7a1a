"""Folders of a save, which appear complete or not at all, and the JSON files in them."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleetx.folders import put_in_place

MANIFEST = "manifest.json"
"""What is written last, so that a folder without it is not complete."""


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which gets this name when that has succeeded."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        put_in_place(partial, folder, old=_old(folder))
        shutil.rmtree(_old(folder), ignore_errors=True)
    except Exception:
        shutil.rmtree(partial, ignore_errors=True)  # the disk may be full because of it
        raise


def found(folder: Path) -> Path:
    """Where the contents of a folder are: there, or beside it if a dying process got that far."""
    old = _old(folder)
    return old if not folder.exists() and (old / MANIFEST).is_file() else folder


def _old(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.old")


def write_json(path: Path, value: dict[str, Any]) -> None:
    """All of it or nothing."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def read_json(path: Path) -> dict[str, Any]:
    """The inverse of ``write_json``."""
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); is this a complete save?") from None
    return value

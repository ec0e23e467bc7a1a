"""Saving tables while they are trained."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.ps import safetensors_file
from fleetx.ps.hashing import Array
from fleetx.ps.row_store import Rows
from fleetx.ps.served import Served
from fleetx.ps.served_dense import ServedDense
from fleetx.ps.served_sparse import ServedSparse

PART_ROWS = 8192
"""Rows that are copied at once, while no push can come in between: a millisecond or two."""
FILE_ROWS = 1 << 16
BREATH = 0.001
"""Seconds between two parts. Locks are not fair: without a pause pushes would wait for many."""
MANIFEST = "manifest.json"
_WAITING = ("ids", "counts", "days")


def save(served: Served, folder: Path, *, delta: bool = False, own: bool = False) -> dict[str, Any]:
    """Write a table, all of it or what changed since the last save, and return the manifest.

    Args:
        served: the table, which may be trained meanwhile.
        folder: where to; it appears when it is complete.
        delta: only rows that changed since the last save.
        own: for this server's own recovery, which leaves the user's marks alone.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if isinstance(served, ServedSparse):
        manifest = _save_sparse(served, partial, delta, own)
    else:
        assert isinstance(served, ServedDense)
        manifest = _save_dense(served, partial)
    write_json(partial / MANIFEST, manifest)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
    return manifest


def _save_sparse(served: ServedSparse, folder: Path, delta: bool, own: bool) -> dict[str, Any]:
    with served.changed:
        manifest = _start(served, "sparse")
        since = served.saved_mark if delta else 0
        mark = served.saved_mark if own else served.table.begin_mark()
        removed = [] if own else served.removed
        if not own:
            served.removed = []
        manifest |= {"mode": "delta" if delta else "full", "day": served.table.day}
        manifest["rows"] = len(served.table)
        bits = max(0, (len(served.table) // PART_ROWS).bit_length())
        waiting = served.table.waiting()
    saved_at: list[int] = []
    files: list[str] = []
    for rows in _files(_parts(served, bits, since, saved_at)):
        name = f"rows-{len(files):05d}.safetensors"
        safetensors_file.write(folder / name, _arrays(rows))
        files.append(name)
    if delta and removed:
        gone = np.unique(np.concatenate(removed))
        safetensors_file.write(folder / "removed.safetensors", {"ids": gone})
        manifest["removed"] = "removed.safetensors"
    if waiting is not None:
        named = dict(zip(_WAITING, waiting, strict=True))
        safetensors_file.write(folder / "waiting.safetensors", named)
        manifest["waiting"] = "waiting.safetensors"
    if not own:
        served.saved_mark = mark
    return manifest | {"files": files, "saved_at": saved_at}


def _start(served: Served, kind: str) -> dict[str, Any]:
    """What must be noted at the very moment at which the save begins."""
    return {
        "kind": kind,
        "spec": served.spec.form(),
        "updates": served.version,
        "after": served.oldest_needed() if served.journal else 0,
        "record": served.journal.number if served.journal else 0,
        "seen": {str(client): seq for client, seq in served.seen.items()},
    }


def _parts(served: ServedSparse, bits: int, since: int, saved_at: list[int]) -> Iterator[Rows]:
    for number in range(1 << bits):
        with served.changed:
            saved_at.append(served.journal.number if served.journal else 0)
            rows = served.table.part(number, bits, since)
        time.sleep(BREATH)
        yield rows


def _files(parts: Iterator[Rows]) -> Iterator[Rows]:
    """Parts put together until they are worth a file."""
    held: list[Rows] = []
    for part in parts:
        held.append(part)
        if sum(map(len, held)) >= FILE_ROWS:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)


def _joined(rows: list[Rows]) -> Rows:
    columns = zip(*(vars(part).values() for part in rows), strict=True)
    return Rows(*(np.concatenate(column) for column in columns))


def _arrays(rows: Rows) -> dict[str, Array]:
    named = {"ids": rows.ids, "days": rows.days, "rows": rows.weights}
    extra = {"state": rows.state, "stats": rows.stats}
    return named | {name: array for name, array in extra.items() if array.shape[1]}


def _save_dense(served: ServedDense, folder: Path) -> dict[str, Any]:
    with served.changed:
        manifest = _start(served, "dense")
        arrays = served.table.arrays()
        filled = served.table.filled
    safetensors_file.write(folder / "dense.safetensors", arrays)
    return manifest | {"mode": "full", "files": ["dense.safetensors"], "filled": filled}


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

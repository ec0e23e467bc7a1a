"""Saving tables while they are trained, and loading them on any number of servers."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.ps import safetensors_file
from fleetx.ps.dense_table import Block
from fleetx.ps.hashing import Array, Ids, servers_of
from fleetx.ps.served import Served
from fleetx.ps.served_dense import ServedDense
from fleetx.ps.served_sparse import ServedSparse
from fleetx.ps.sparse_table import Rows, SparseTable

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


def recover(served: Served, folder: Path) -> None:
    """Take back this server's own last save and every change logged after it."""
    after = 0
    if (folder / MANIFEST).exists():
        manifest = read_json(folder / MANIFEST)
        after = manifest["after"]
        served.seen = {int(client): seq for client, seq in manifest["seen"].items()}
        _restore(served, folder, manifest)
    if served.journal is not None:
        served.replay(after)
    if isinstance(served, ServedSparse):
        served.saved_at = None


def _restore(served: Served, folder: Path, manifest: dict[str, Any]) -> None:
    if isinstance(served, ServedSparse):
        served.table.reserve(manifest["rows"])
        for name in manifest["files"]:
            served.table.put(_rows(served.table, folder / name))
        if "waiting" in manifest:
            served.table.put_waiting(*_waiting(folder, manifest))
        served.table.updates, served.table.day = manifest["updates"], manifest["day"]
        served.saved_at = np.array(manifest["saved_at"], np.int64)
    elif isinstance(served, ServedDense):
        if manifest["filled"]:
            served.table.put(safetensors_file.read(folder / manifest["files"][0]))
        served.table.updates = manifest["updates"]


def _waiting(folder: Path, manifest: dict[str, Any]) -> tuple[Array, Array, Array]:
    arrays = safetensors_file.read(folder / manifest["waiting"])
    return arrays["ids"], arrays["counts"], arrays["days"]


def _rows(table: SparseTable, path: Path) -> Rows:
    arrays = safetensors_file.read(path)
    n = len(arrays["ids"])
    none = np.empty((n, 0), np.float32)
    rows = Rows(
        arrays["ids"],
        arrays["rows"],
        arrays.get("state", none),
        arrays.get("stats", none),
        arrays.get("days", np.zeros(n, np.int32)),
    )
    if rows.weights.shape != (n, table.spec.dim):
        raise ValueError(
            f"{path} holds rows of {rows.weights.shape[1]} floats, and table {table.spec.name!r} "
            f"has {table.spec.dim}; load it into a table of the same width"
        )
    return rows


def load_sparse(served: ServedSparse, folders: list[Path], server: int, servers: int) -> int:
    """Take those rows of a save that belong to this server; returns how many there were."""
    count = 0
    for folder in folders:
        manifest = read_json(folder / MANIFEST)
        with served.changed:
            share = len(folders) * manifest["rows"] // servers
            served.table.reserve(max(len(served.table), share))
        for name in manifest["files"]:
            count += _load(served, folder / name, lambda ids: servers_of(ids, servers) == server)
        if "waiting" in manifest:
            _load_waiting(served, _waiting(folder, manifest), server, servers)
        if "removed" in manifest:
            gone = safetensors_file.read(folder / manifest["removed"])["ids"]
            with served.changed:
                served.table.drop(gone)
    return count


def _load_waiting(
    served: ServedSparse, found: tuple[Array, Array, Array], server: int, servers: int
) -> None:
    mine = servers_of(found[0], servers) == server
    with served.changed:
        served.table.put_waiting(*(array[mine] for array in found))


def _load(served: ServedSparse, path: Path, ours: Callable[[Ids], Array]) -> int:
    rows = _rows(served.table, path)
    mine = ours(rows.ids)
    chosen = Rows(*(array[mine] for array in vars(rows).values()))
    with served.changed:
        served.table.put(chosen)
    return len(chosen)


def load_dense(served: ServedDense, folders: list[Path]) -> None:
    """Take this server's share, however the parameters were cut when they were saved."""
    whole: dict[str, dict[str, Array]] = {}
    for folder in folders:
        manifest = read_json(folder / MANIFEST)
        if manifest["filled"]:
            arrays = safetensors_file.read(folder / manifest["files"][0])
            _collect(whole, manifest["spec"]["blocks"], arrays)
    wanted = served.table.spec.blocks
    if missing := {name for name, _, _ in wanted} - whole.keys():
        raise ValueError(
            f"{folders[0].parent} holds no parameter {min(missing)!r}; load it into the model "
            "that was saved"
        )
    keys = {key for arrays in whole.values() for key in arrays}
    cut = {key: _cut(whole, wanted, key) for key in keys}
    with served.changed:
        served.table.put(cut)


def _collect(
    whole: dict[str, dict[str, Array]], blocks: list[Block], arrays: dict[str, Array]
) -> None:
    """Put the blocks of one server where they belong in the flat parameters."""
    at = 0
    for name, begin, end in blocks:
        held = whole.setdefault(name, {})
        for key, array in arrays.items():
            if array.ndim == 0:
                held[key] = array
                continue
            old = held.get(key, np.empty(0, np.float32))
            if len(old) < end:
                old = np.concatenate([old, np.zeros(end - len(old), np.float32)])
            old[begin:end] = array[at : at + end - begin]
            held[key] = old
        at += end - begin


def _cut(whole: dict[str, dict[str, Array]], blocks: tuple[Block, ...], key: str) -> Array:
    pieces = [whole[name][key] for name, _, _ in blocks]
    if pieces and pieces[0].ndim == 0:
        return pieces[0]
    cut = [piece[begin:end] for piece, (_, begin, end) in zip(pieces, blocks, strict=True)]
    return np.concatenate(cut) if cut else np.empty(0, np.float32)


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

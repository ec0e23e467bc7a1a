"""Loading tables: a server's own save after its death, or a save of any number of servers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.ps import safetensors_file
from fleetx.ps.dense_table import Block
from fleetx.ps.hashing import Array, Ids, servers_of
from fleetx.ps.row_store import Rows
from fleetx.ps.served import Served
from fleetx.ps.served_dense import ServedDense
from fleetx.ps.served_sparse import ServedSparse
from fleetx.ps.snapshot import MANIFEST, read_json
from fleetx.ps.sparse_table import SparseTable


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

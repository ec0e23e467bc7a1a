"""Saving tables while they are trained."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.ps.server.logged_dense_table import ServedDense
from fleetx.ps.server.logged_sparse_table import ServedSparse
from fleetx.ps.server.logged_table import Served
from fleetx.ps.tables import safetensors_file, save_folder
from fleetx.ps.tables.row_store import Rows
from fleetx.ps.tables.save_folder import MANIFEST, write_json
from fleetx.ps.wire.arrays import Array, Ids

PART_ROWS = 8192
"""Rows that are copied at once, while no push can come in between: a millisecond or two."""
FILE_ROWS = 1 << 16
BREATH = 0.001
"""Seconds between two parts. Locks are not fair: without a pause pushes would wait for many."""
_WAITING = ("ids", "counts", "days")


def save(served: Served, folder: Path, *, delta: bool = False, mark: bool = True) -> dict[str, Any]:
    """Write a table, all of it or what changed since the last save, and return the manifest.

    Args:
        served: the table, which may be trained meanwhile.
        folder: where to; it appears when it is complete.
        delta: only rows that changed since the last save that set a mark.
        mark: later deltas begin here; else they do not know of this save.
    """
    served.require_whole()
    with save_folder.filled(folder) as partial:
        if isinstance(served, ServedSparse):
            moment = _Moment.of(served, delta, mark)
            manifest = _save_sparse(served, partial, moment)
        else:
            assert isinstance(served, ServedDense)
            manifest = _save_dense(served, partial)
        write_json(partial / MANIFEST, manifest)
    if isinstance(served, ServedSparse) and mark:
        served.mark_saved(*moment.mark, removed=moment.dropped)
    return manifest


@dataclass(frozen=True)
class _Moment:
    """How a sparse table stood when its save began."""

    manifest: dict[str, Any]
    since: int
    """The mark of the oldest changes to save."""
    mark: tuple[int, int]
    removed: list[Ids]
    """The ids to name as dropped."""
    dropped: int
    bits: int
    """The table is saved in two to the power of this many parts."""

    @staticmethod
    def of(served: ServedSparse, delta: bool, mark: bool) -> "_Moment":
        with served.changed:
            new = served.table.begin_mark() if mark else served.table.mark
            manifest = _start(served, "sparse") | {
                "mode": "delta" if delta else "full",
                "day": served.table.day,
                "rows": len(served.table),
                "shrunk": {str(client): said for client, said in served.shrunk.items()},
            }
            return _Moment(
                manifest,
                served.unsaved_since() if delta else 0,
                (served.table.era, new),
                [] if mark and not delta else [*served.removed],
                len(served.removed),
                (served.table.largest // PART_ROWS).bit_length(),
            )


def _save_sparse(served: ServedSparse, folder: Path, moment: _Moment) -> dict[str, Any]:
    saved_at: list[int] = []
    waiting: list[tuple[Ids, Ids, Ids]] = []
    files: list[str] = []
    manifest = moment.manifest | {"files": files, "saved_at": saved_at}
    for rows in _files(_parts(served, moment, saved_at, waiting)):
        name = f"rows-{len(files):05d}.safetensors"
        safetensors_file.write(folder / name, _arrays(rows))
        files.append(name)
    if moment.removed:
        gone = np.unique(np.concatenate(moment.removed))
        safetensors_file.write(folder / "removed.safetensors", {"ids": gone})
        manifest["removed"] = "removed.safetensors"
    if waiting:
        joined = [np.concatenate(column) for column in zip(*waiting, strict=True)]
        named = dict(zip(_WAITING, joined, strict=True))
        safetensors_file.write(folder / "waiting.safetensors", named)
        manifest["waiting"] = "waiting.safetensors"
    return manifest


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


def _parts(
    served: ServedSparse,
    moment: _Moment,
    saved_at: list[int],
    waiting: list[tuple[Ids, Ids, Ids]],
) -> Iterator[Rows]:
    """Copies of part after part; who waits for a row is copied along with those who have one."""
    for number in range(1 << moment.bits):
        with served.changed:
            served.require_whole()
            saved_at.append(served.journal.number if served.journal else 0)
            rows = served.table.part(number, moment.bits, moment.since)
            candidates = served.table.waiting_part(number, moment.bits)
        if candidates is not None:
            waiting.append(candidates)
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
        shapes = served.table.room()
    # Fresh memory costs more than the copy into it: it is touched before pushes have to wait.
    room: dict[str, Array] = {n: np.full(shape, 0, np.float32) for n, shape in shapes.items()}
    with served.changed:
        served.require_whole()
        manifest = _start(served, "dense")
        arrays = served.table.arrays(room)
        filled = served.table.filled
    safetensors_file.write(folder / "dense.safetensors", arrays)
    return manifest | {"mode": "full", "files": ["dense.safetensors"], "filled": filled}

"""Saving tables while they are trained."""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fleetx.ps.server.logged_dense_table import LoggedDenseTable
from fleetx.ps.server.logged_sparse_table import LoggedSparseTable
from fleetx.ps.server.logged_table import LoggedTable
from fleetx.ps.server.written_save import WrittenSave
from fleetx.ps.tables import safetensors_file, save_folder
from fleetx.ps.tables.entries import ShowClickEntry
from fleetx.ps.tables.row_store import Rows
from fleetx.ps.tables.save_folder import MANIFEST, write_json
from fleetx.ps.wire.arrays import Array, Ids

PART_ROWS = 8192
"""Rows that are copied at once, while no push can come in between: a millisecond or two."""
FILE_ROWS = 1 << 16
PAUSE = 0.001
"""Seconds between two parts. Locks are not fair: without a pause pushes would wait for many."""
_WAITING = ("ids", "counts", "days")


class Saved(NamedTuple):
    """What was written."""

    manifest: dict[str, Any]
    checksum: str
    """Of the manifest, which names those of all files."""


def save(
    logged: LoggedTable,
    folder: Path,
    *,
    delta: bool = False,
    mark: bool = True,
    keep_old: bool = False,
    worthy: bool = False,
) -> Saved:
    """Write a table, all of it or what changed since the last save.

    Args:
        logged: the table, which may be trained meanwhile.
        folder: where to; it appears when it is complete.
        delta: only rows that changed since the last save that set a mark.
        mark: later deltas begin here, once ``mark_saved`` says that all servers have written; else
            they do not know of this save.
        keep_old: leave what was there before beside it; it is a part of a save of all servers.
        worthy: only rows that are worth it, where the table counts shows and clicks.
    """
    logged.require_intact()
    with save_folder.filled(folder, keep_old=keep_old) as partial:
        if isinstance(logged, LoggedSparseTable):
            start = _SaveStart.of(logged, delta, mark, worthy)
            manifest = _save_sparse(logged, partial, start)
        else:
            assert isinstance(logged, LoggedDenseTable)
            manifest = _save_dense(logged, partial)
        checksum = write_json(partial / MANIFEST, manifest)
    if isinstance(logged, LoggedSparseTable) and mark:
        written = WrittenSave(*start.mark, start.dropped, manifest["identity"], folder)
        logged.note_written(written)
    return Saved(manifest, checksum)


@dataclass(frozen=True)
class _SaveStart:
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
    entry: ShowClickEntry | None
    """Says which rows are worth it; None where all are."""

    @staticmethod
    def of(
        logged: LoggedSparseTable, delta: bool, mark: bool, worthy: bool = False
    ) -> "_SaveStart":
        entry = logged.table.spec.entry
        with logged.changed:
            new = logged.table.begin_mark() if mark else logged.table.mark
            manifest = _start(logged, "sparse") | {
                "mode": "delta" if delta else "full",
                "day": logged.table.day,
                "rows": len(logged.table),
                "shrunk": {str(client): call for client, call in logged.shrunk.items()},
                "day_end": logged.day_end.plain() if logged.day_end else None,
                "base": logged.saved_as if delta else "",
                "loaded": sorted(logged.loaded),
                "differences": logged.moved_by_differences,
            }
            return _SaveStart(
                manifest,
                logged.unsaved_since() if delta else 0,
                (logged.table.era, new),
                [] if mark and not delta else [*logged.removed],
                len(logged.removed),
                (logged.table.largest // PART_ROWS).bit_length(),
                entry if worthy and isinstance(entry, ShowClickEntry) else None,
            )

    def chosen(self, rows: Rows) -> Rows:
        """Those that are saved."""
        if self.entry is None:
            return rows
        worth = self.entry.worth_saving(rows.stats, rows.days, self.manifest["day"])
        return Rows(*(array[worth] for array in vars(rows).values()))


def _save_sparse(logged: LoggedSparseTable, folder: Path, start: _SaveStart) -> dict[str, Any]:
    saved_at: list[int] = []
    waiting: list[tuple[Ids, Ids, Ids]] = []
    files: list[str] = []
    written: dict[str, str] = {}
    manifest = start.manifest | {"files": files, "saved_at": saved_at, "checksums": written}
    for rows in _files(_parts(logged, start, saved_at, waiting)):
        name = f"rows-{len(files):05d}.safetensors"
        written[name] = safetensors_file.write(folder / name, _arrays(rows))
        files.append(name)
    if start.removed:
        gone, name = np.unique(np.concatenate(start.removed)), "removed.safetensors"
        written[name] = safetensors_file.write(folder / name, {"ids": gone})
        manifest["removed"] = name
    if waiting:
        joined = [np.concatenate(column) for column in zip(*waiting, strict=True)]
        named, name = dict(zip(_WAITING, joined, strict=True)), "waiting.safetensors"
        written[name] = safetensors_file.write(folder / name, named)
        manifest["waiting"] = name
    return manifest


def _start(logged: LoggedTable, kind: str) -> dict[str, Any]:
    """What must be noted at the very moment at which the save begins."""
    journal = logged.journal
    return {
        "kind": kind,
        "identity": secrets.token_hex(16),
        "log": journal.identity if journal else "",
        "follows": journal.checkpoint if journal else "",
        "spec": logged.spec.to_plain(),
        "updates": logged.version,
        "after": logged.oldest_needed() if logged.journal else 0,
        "record": logged.journal.number if logged.journal else 0,
        "seen": {str(client): seq for client, seq in logged.seen.items()},
    }


def _parts(
    logged: LoggedSparseTable,
    start: _SaveStart,
    saved_at: list[int],
    waiting: list[tuple[Ids, Ids, Ids]],
) -> Iterator[Rows]:
    """Copies of part after part; who waits for a row is copied along with those who have one."""
    for number in range(1 << start.bits):
        with logged.changed:
            logged.require_intact()
            saved_at.append(logged.journal.number if logged.journal else 0)
            rows = logged.table.part(number, start.bits, start.since)
            candidates = logged.table.waiting_part(number, start.bits)
        if candidates is not None:
            waiting.append(candidates)
        time.sleep(PAUSE)
        yield start.chosen(rows)


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


def _save_dense(logged: LoggedDenseTable, folder: Path) -> dict[str, Any]:
    with logged.changed:
        shapes = logged.table.shapes()
    # Fresh memory costs more than the copy into it: it is touched before pushes have to wait.
    buffers: dict[str, Array] = {n: np.full(shape, 0, np.float32) for n, shape in shapes.items()}
    with logged.changed:
        logged.require_intact()
        manifest = _start(logged, "dense")
        arrays = logged.table.arrays(buffers)
        filled = logged.table.filled
    name = "dense.safetensors"
    written = {name: safetensors_file.write(folder / name, arrays)}
    files = {"files": [name], "checksums": written}
    return manifest | {"mode": "full", "filled": filled} | files

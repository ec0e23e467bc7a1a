"""Loading tables: a server's own save after its death, or a save of any number of servers."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.ps.server.day_end import DayEnd
from fleetx.ps.server.logged_dense_table import LoggedDenseTable
from fleetx.ps.server.logged_sparse_table import LoggedSparseTable
from fleetx.ps.server.logged_table import LoggedTable
from fleetx.ps.tables import save_folder, saves
from fleetx.ps.tables.checksums import DamagedError
from fleetx.ps.tables.dense_table import COUNTS, Block, with_counts
from fleetx.ps.tables.hashing import servers_of
from fleetx.ps.tables.journal import Journal
from fleetx.ps.tables.row_store import Rows
from fleetx.ps.tables.save_folder import MANIFEST
from fleetx.ps.tables.saves import Piece
from fleetx.ps.tables.sparse_table import SparseTable
from fleetx.ps.wire.arrays import Array, Ids

logger = logging.getLogger(__name__)


def recover(logged: LoggedTable, folder: Path) -> None:
    """Take back this server's own last checkpoint and every change logged after it.

    ``DamagedError`` where one of them is not the one that the other speaks of.
    """
    journal = logged.journal
    assert journal is not None
    piece, after = _checkpoint(journal, save_folder.found(folder)), 0
    if piece is not None:
        after = piece.manifest["after"]
        logged.seen = {int(client): seq for client, seq in piece.manifest["seen"].items()}
        _restore(logged, piece)
    logged.replay(after)
    if isinstance(logged, LoggedSparseTable):
        logged.saved_at = None
    if piece is not None and journal.number < piece.manifest["record"]:
        raise DamagedError(
            f"the log beside {piece.folder} ends with record {journal.number}, and the checkpoint "
            f"there knows of record {piece.manifest['record']}: the end of the log is lost"
        )
    if isinstance(logged, LoggedSparseTable):
        logged.finish_day_end()


def _checkpoint(journal: Journal, folder: Path) -> Piece | None:
    """The checkpoint that a log continues, if there is one."""
    if not (folder / MANIFEST).exists():
        if journal.checkpoint:
            raise DamagedError(
                f"{folder / MANIFEST} is missing, the checkpoint that the log beside it continues"
            )
        return None
    piece = saves.piece(folder)
    # A server that died between the two had not yet told its log of the checkpoint.
    known = (piece.manifest["identity"], piece.manifest["follows"])
    if piece.manifest["log"] != journal.identity or journal.checkpoint not in known:
        raise DamagedError(f"{folder} is not the checkpoint that the log beside it continues")
    if journal.first > piece.manifest["after"] + 1:
        raise DamagedError(
            f"the log beside {folder} begins with record {journal.first}, and the checkpoint there "
            f"ends with record {piece.manifest['after']}: what was between is lost"
        )
    return piece


def _restore(logged: LoggedTable, piece: Piece) -> None:
    manifest = piece.manifest
    if isinstance(logged, LoggedSparseTable):
        logged.table.reserve(manifest["rows"])
        for name in manifest["files"]:
            logged.table.put(_rows(piece, name))
        if "waiting" in manifest:
            logged.table.put_waiting(*_waiting(piece))
        if "removed" in manifest:
            logged.removed = [_removed(piece)]
        logged.table.updates, logged.table.day = manifest["updates"], manifest["day"]
        logged.saved_at = np.array(manifest["saved_at"], np.int64)
        logged.followed_after = manifest["record"]
        logged.loaded = frozenset(manifest.get("loaded", ()))
        logged.moved_by_differences = bool(manifest.get("differences"))
        shrunk = manifest["shrunk"].items()
        logged.shrunk = {int(client): (call, gone) for client, (call, gone) in shrunk}
        if manifest.get("day_end"):
            logged.day_end = DayEnd.from_plain(manifest["day_end"])
    elif isinstance(logged, LoggedDenseTable):
        if manifest["filled"]:
            logged.table.put(piece.read(manifest["files"][0]))
        logged.table.updates = manifest["updates"]


def _removed(piece: Piece) -> Ids:
    ids: Ids = piece.read(piece.manifest["removed"])["ids"]
    return ids


def _waiting(piece: Piece) -> tuple[Array, Array, Array]:
    arrays = piece.read(piece.manifest["waiting"])
    return arrays["ids"], arrays["counts"], arrays["days"]


def _rows(piece: Piece, name: str) -> Rows:
    arrays = piece.read(name)
    n = len(arrays["ids"])
    none = np.empty((n, 0), np.float32)
    return Rows(
        arrays["ids"],
        arrays["rows"],
        arrays.get("state", none),
        arrays.get("stats", none),
        arrays.get("days", np.zeros(n, np.int32)),
    )


def load_sparse(logged: LoggedSparseTable, pieces: list[Piece], server: int, servers: int) -> int:
    """Set a table to this server's share of a save; returns how many rows there were.

    A full save takes the place of all rows. What a delta dropped goes before its rows come: an id
    may have been met again after that.
    """
    manifests = [piece.manifest for piece in pieces]
    count, share = 0, sum(manifest["rows"] for manifest in manifests) // servers
    _say_of_state(logged.table, pieces)
    ours = _share(server, servers)
    with logged.lost_on_failure():
        _make_room(logged, manifests, share)
        for piece in pieces:
            if "removed" in piece.manifest:
                _drop(logged, _removed(piece))
            for name in piece.manifest["files"]:
                count += _load(logged, _rows(piece, name), ours)
            if "waiting" in piece.manifest:
                _load_waiting(logged, _waiting(piece), ours)
    logged.loaded = frozenset(manifest.get("identity", "") for manifest in manifests)
    logged.moved_by_differences = any(manifest.get("differences") for manifest in manifests)
    return count


def check_fits(logged: LoggedTable, pieces: list[Piece]) -> None:
    """Refuse a save that cannot be loaded into a table, before any table is changed."""
    if isinstance(logged, LoggedSparseTable):
        _check(logged.table, pieces)
    elif isinstance(logged, LoggedDenseTable):
        _check_dense(logged, pieces)


def dense_sizes(pieces: list[Piece]) -> dict[str, int]:
    """How many numbers each dense parameter has in a save."""
    sizes: dict[str, int] = {}
    for piece in pieces:
        if piece.manifest.get("filled"):
            for name, _, end in piece.manifest["spec"]["blocks"]:
                sizes[name] = max(end, sizes.get(name, 0))
    return sizes


def _check_dense(logged: LoggedDenseTable, pieces: list[Piece]) -> None:
    folder, sizes = pieces[0].folder.parent, dense_sizes(pieces)
    for name, _, end in logged.table.spec.blocks:
        if name not in sizes:
            raise ValueError(
                f"{folder} holds no parameter {name!r}; load it into the model that was saved"
            )
        if end > sizes[name]:
            raise ValueError(
                f"{folder} holds parameter {name!r} with {sizes[name]} numbers, and the model has "
                "more; load it into the model that was saved"
            )


def check_base(logged: LoggedSparseTable, pieces: list[Piece]) -> None:
    """Refuse a delta unless the save that it continues was loaded before it.

    One whose server did not know that save, after a death, and those of earlier versions of fleetx
    name none.
    """
    bases = {piece.manifest.get("base", "") for piece in pieces} - {""}
    if not bases <= logged.loaded:
        folder = pieces[0].folder.parents[1]
        raise ValueError(
            f"{folder} is a delta and holds what changed in table {logged.spec.name!r} since the "
            "save before it, which is not the one that was loaded last; load the full save and "
            "then each delta after it, in the order in which they were written: "
            f"fleet.load_persistables('the full save'), ..., "
            f"fleet.load_persistables({str(folder)!r})"
        )


def _check(table: SparseTable, pieces: list[Piece]) -> None:
    """Refuse what cannot be loaded before anything is changed."""
    for piece in pieces:
        if (width := piece.manifest["spec"]["dim"]) != table.spec.dim:
            raise ValueError(
                f"{piece.folder} holds rows of {width} floats, and table {table.spec.name!r} has "
                f"{table.spec.dim}; load it into a table of the same width"
            )
        for name in piece.names:
            piece.read(name)  # twice in all; a damaged one must not cost the table


def _say_of_state(table: SparseTable, pieces: list[Piece]) -> None:
    """Rows come without the state of another rule, and with that of this one as it begins."""
    own = type(table.spec.rule).__name__
    for piece in pieces:
        saved = piece.manifest["spec"]["rule"]["kind"]
        if saved not in {own, "SGD"} and piece.manifest["rows"]:  # which keeps none
            logger.warning("%s holds state of %s, which is not taken", piece.folder, saved)


def _make_room(logged: LoggedSparseTable, manifests: list[dict[str, Any]], share: int) -> None:
    day = max(manifest["day"] for manifest in manifests)
    with logged.changed:
        logged.recent_changes.forget()
        if all(manifest["mode"] == "full" for manifest in manifests):
            logged.removed.append(logged.table.ids())
            logged.table.clear()
            logged.table.begin_day(day)
        else:
            logged.table.begin_day(max(day, logged.table.day))
        logged.table.reserve(max(len(logged.table), share))


def _drop(logged: LoggedSparseTable, ids: Ids) -> None:
    with logged.changed:
        logged.table.drop(ids)
        logged.removed.append(ids)


def _share(server: int, servers: int) -> Callable[[Ids], Array]:
    return lambda ids: servers_of(ids, servers) == server


def _load_waiting(
    logged: LoggedSparseTable, found: tuple[Array, Array, Array], ours: Callable[[Ids], Array]
) -> None:
    mine = ours(found[0])
    with logged.changed:
        logged.table.put_waiting(*(array[mine] for array in found))


def _load(logged: LoggedSparseTable, rows: Rows, ours: Callable[[Ids], Array]) -> int:
    mine = ours(rows.ids)
    chosen = Rows(*(array[mine] for array in vars(rows).values()))
    with logged.changed:
        logged.table.put(chosen)
    return len(chosen)


def load_dense(logged: LoggedDenseTable, pieces: list[Piece]) -> None:
    """Take this server's share, however the parameters were cut when they were saved."""
    whole: dict[str, dict[str, Array]] = {}
    saved = [_dense(logged, piece) for piece in pieces if piece.manifest["filled"]]
    if any(COUNTS in arrays for _, arrays in saved):  # some servers may not have met the reason yet
        saved = [(blocks, with_counts(arrays)) for blocks, arrays in saved]
    for blocks, arrays in saved:
        _collect(whole, blocks, arrays)
    wanted = logged.table.spec.blocks
    keys = {key for arrays in whole.values() for key in arrays}
    cut = {key: _cut(whole, wanted, key) for key in keys}
    logged.replace(cut)


def _dense(logged: LoggedDenseTable, piece: Piece) -> tuple[list[Block], dict[str, Array]]:
    """What a server has saved of dense parameters, without the state of another rule."""
    spec, arrays = piece.manifest["spec"], piece.read(piece.manifest["files"][0])
    if (rule := spec["optimizer"]) != logged.table.spec.optimizer:
        logger.warning("%s holds state of %s, which is not taken", piece.folder, rule)
        arrays = {"values": arrays["values"]}
    return spec["blocks"], arrays


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
    # A number beside the parameters, such as how many updates there were, is the same for all; a
    # server without a block needs it too.
    example = next(arrays[key] for arrays in whole.values() if key in arrays)
    if example.ndim == 0:
        return example
    cut = [_flat(whole[name], key)[begin:end] for name, begin, end in blocks]
    return np.concatenate(cut) if cut else np.empty(0, np.float32)


def _flat(arrays: dict[str, Array], key: str) -> Array:
    """An array of a whole parameter; zeros where nothing was moved yet and had no state."""
    flat = np.zeros_like(arrays["values"])
    held = arrays.get(key, flat)
    flat[: len(held)] = held
    return flat

"""The tables of one server, and what of them is on the disk."""

import logging
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from fleetx.ps.server import restoring, snapshot
from fleetx.ps.server.logged_dense_table import LoggedDenseTable
from fleetx.ps.server.logged_sparse_table import LoggedSparseTable
from fleetx.ps.server.logged_table import LoggedTable
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.not_finite import SKIP
from fleetx.ps.server.state_folder import StateFolder
from fleetx.ps.tables import save_folder, save_lock
from fleetx.ps.tables.checksums import DamagedError
from fleetx.ps.tables.dense_table import DenseSpec, group_of
from fleetx.ps.tables.journal import Journal
from fleetx.ps.tables.saves import Piece, Save
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.messages import Message

logger = logging.getLogger(__name__)

LOG_LIMIT = 1 << 30
"""Bytes of log of one table after which the table is saved and the log begins anew."""
LONGEST = 120
"""Characters of a value that a complaint shows."""


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """How tables are kept."""

    state: StateFolder | None = None
    """For recovery; without it nothing is logged."""
    durable: bool = False
    log_limit: int = LOG_LIMIT
    on_nan: str = SKIP
    """What becomes of gradients that are not finite."""


class TableStore:
    """Makes tables, brings them back, saves and loads them."""

    def __init__(
        self, membership: Membership, server: int, servers: int, storage: StorageOptions
    ) -> None:
        self._membership = membership
        self._server, self._servers, self._storage = server, servers, storage
        self.tables: list[LoggedTable] = []
        self._makers: list[int] = []
        """For each table, the worker that asked for it first."""
        self._lock, self._saving = threading.Lock(), threading.Lock()
        self._preload: Save | None = None
        self._preloaded: list[str] | None = None
        if storage.state is not None:
            self._recover(storage.state)

    def preload(self, folder: Path | None, tables: list[str] | None) -> None:
        """Let tables begin with what a save holds; those that came back from death do not."""
        save = None if folder is None else Save.opened(folder)
        if save is not None:
            save.require_full("a table cannot begin with part of itself")
            _check_names(tables, save)
        self._preload, self._preloaded = save, tables

    @property
    def preloads(self) -> bool:
        """Whether tables begin with what a save holds."""
        return self._preload is not None

    @property
    def preloads_all_of(self) -> str:
        """The save with all of which the job begins; "" if there is none."""
        return str(self._preload.root) if self._preload and self._preloaded is None else ""

    def saved_sizes(self, folder: Path | None) -> dict[str, dict[str, int]]:
        """Group of dense parameters -> how many numbers each has in a save.

        If no folder is said, the save with which tables begin, as far as they do.
        """
        save, tables = (self._preload, self._preloaded)
        if folder is not None:
            save, tables = Save.opened(folder), None
        found: dict[str, dict[str, int]] = {}
        for name in [] if save is None else save.tables:
            if tables is None or name in tables:
                assert save is not None
                sizes = restoring.dense_sizes(save.pieces_of(name))
                found.setdefault(group_of(name), {}).update(sizes)
        return {group: sizes for group, sizes in found.items() if sizes}

    def create(self, kind: str, plain: Message, worker: int) -> tuple[int, LoggedTable]:
        """The table of this name and its number, made at the first call."""
        with self._lock:
            for number, logged in enumerate(self.tables):
                if logged.spec.name == plain["name"]:
                    _same(logged, self._makers[number], plain, worker)
                    return number, logged
            number = len(self.tables)
            self.tables.append(self._made(number, kind, plain, worker))
            self._makers.append(worker)
            return number, self.tables[number]

    def adopt(self, logged: LoggedTable) -> None:
        """Hold a table that was made elsewhere, in the place of the one of its name."""
        with self._lock:
            names = [each.spec.name for each in self.tables]
            if logged.spec.name in names:
                self.tables[names.index(logged.spec.name)] = logged
            else:
                self.tables.append(logged)
                self._makers.append(0)

    def _made(self, number: int, kind: str, plain: Message, worker: int) -> LoggedTable:
        """A new table; recovery knows of it when all that it begins with is on the disk."""
        state = self._storage.state
        place = None if state is None else state.place(number)
        if place is not None:
            _remove_begun(place)
            place.mkdir(parents=True)
        made = self._make(kind, plain, place)
        if self._preload is not None:
            if _holds(self._preload, made, self._preloaded):
                restoring.check_fits(made, _pieces(self._preload, made))
            elif self._preloaded is None:  # else the others were left out on purpose
                _say_lacking(self._preload, made.spec.name)
            self._fill_and_keep(number, made, self._preload, self._preloaded)
        if state is not None:
            assert place is not None
            assert made.journal is not None
            kept = {"kind": kind, "spec": plain, "worker": worker}
            save_folder.write_json(place / "spec.json", kept)
            state.note_table(made.journal.identity)
        return made

    def _make(self, kind: str, plain: Message, place: Path | None) -> LoggedTable:
        log, durable = place / "log" if place else None, self._storage.durable
        made: LoggedTable
        if kind == "sparse":
            made = LoggedSparseTable(SparseSpec.from_plain(plain), self._membership, log, durable)
        else:
            made = LoggedDenseTable(DenseSpec.from_plain(plain), self._membership, log, durable)
        made.not_finite.answer = self._storage.on_nan
        return made

    def _recover(self, state: StateFolder) -> None:
        for place in state.tables():
            kept = save_folder.read_json(place / "spec.json")
            logged = self._make(kept["kind"], kept["spec"], place)
            restoring.recover(logged, place / "saved")
            self.tables.append(logged)
            self._makers.append(kept["worker"])
            logger.warning("table %s is back with %s", logged.spec.name, logged.describe())

    def checkpoint(self, *, force: bool = False) -> None:
        """Save tables whose log has become long, and begin their logs anew."""
        if self._storage.state is None or not self._saving.acquire(blocking=force):
            return  # whoever saves now takes long; the next look is soon
        try:
            for number, logged in enumerate(self.tables):
                assert logged.journal is not None
                long = force or logged.journal.bytes > self._storage.log_limit
                if long and not logged.lost:
                    self._write_down(number, logged)
        finally:
            self._saving.release()

    def _write_down(self, number: int, logged: LoggedTable) -> None:
        if self._storage.state is None:
            return
        assert logged.journal is not None
        with logged.changed:
            logged.journal.cut()
        place = self._storage.state.place(number)
        manifest = snapshot.save(logged, place / "saved", mark=False).manifest
        with logged.changed:
            logged.journal.continue_from(manifest["identity"], manifest["after"])

    def clear(self) -> None:
        """Remove what recovery would find."""
        for logged in self.tables:
            if logged.journal is not None:
                logged.journal.close()
        if (state := self._storage.state) is not None:
            state.note_end()
            for place in sorted(state.folder.glob("[0-9]*")):
                shutil.rmtree(place, ignore_errors=True)
            state.remove_index()

    def save(self, root: Path, *, delta: bool, mark: bool, worthy: bool = False) -> dict[str, str]:
        """Write this server's share of a save of the user.

        Returns for each table the checksum of what says which files there are.
        """
        written: dict[str, str] = {}
        with self._saving, save_lock.held(root, save_lock.server(self._server)):
            for logged in self.tables:
                if isinstance(logged, LoggedSparseTable):
                    logged.mark_found(root)
            if delta:
                _refuse_to_replace(root, self.tables)
            for logged in self.tables:
                place = root / logged.spec.name / f"server-{self._server}"
                saved = snapshot.save(
                    logged, place, delta=delta, mark=mark, keep_old=True, worthy=worthy
                )
                written[logged.spec.name] = saved.checksum
        return written

    def mark_saved(self) -> None:
        """What was written last is a whole save, which the next delta continues."""
        for logged in self.tables:
            if isinstance(logged, LoggedSparseTable):
                logged.mark_saved()

    def load(self, root: Path, tables: list[str] | None = None) -> dict[str, list[str]]:
        """Set the tables that exist to this server's share of a save.

        Returns what stays as it is, for a save of everything does not hold it, and what that holds
        for nobody; nothing where tables are named.
        """
        save = Save.opened(root)
        _check_names(tables, save, [logged.spec.name for logged in self.tables])
        with self._saving:
            for logged in self.tables:  # before any of them is changed
                if _holds(save, logged, tables):
                    restoring.check_fits(logged, _pieces(save, logged))
                    if isinstance(logged, LoggedSparseTable):
                        restoring.check_base(logged, save.pieces_of(logged.spec.name))
            for number, logged in enumerate(self.tables):
                logged.require_intact()
                self._fill_and_keep(number, logged, save, tables)
        return {} if tables is not None else self._apart(save)

    def _apart(self, save: Save) -> dict[str, list[str]]:
        taken = {name for logged in self.tables for name in _names_in(save, logged)}
        return {
            "kept": [each.spec.name for each in self.tables if not _holds(save, each, None)],
            "left": [name for name in save.tables if name not in taken],
        }

    def _fill_and_keep(
        self, number: int, logged: LoggedTable, save: Save, tables: list[str] | None
    ) -> None:
        with logged.replaced():
            if self._fill(logged, save, tables):
                with logged.lost_on_failure():
                    self._write_down(number, logged)  # what was loaded is in no log

    def _fill(self, logged: LoggedTable, save: Save, tables: list[str] | None) -> bool:
        """Load a table, if a save holds it and it is wanted; whether that is so."""
        if not _holds(save, logged, tables):
            return False
        pieces = _pieces(save, logged)
        if isinstance(logged, LoggedSparseTable):
            restoring.load_sparse(logged, pieces, self._server, self._servers)
        elif isinstance(logged, LoggedDenseTable):
            restoring.load_dense(logged, pieces)
        return True


def _refuse_to_replace(root: Path, tables: list[LoggedTable]) -> None:
    """Refuse a delta in the place of what it continues: neither could be loaded any more."""
    try:
        save = Save.opened(root)
    except DamagedError:  # nothing there can be loaded, if there is anything
        return
    for logged in tables:
        if isinstance(logged, LoggedSparseTable) and logged.spec.name in save.tables:
            pieces = save.pieces_of(logged.spec.name)
            if not save.is_delta or logged.saved_as in {p.manifest.get("identity") for p in pieces}:
                found = "what this delta continues" if save.is_delta else "a full save"
                raise ValueError(
                    f"{root} holds {found}, and a delta in its place could not be loaded without "
                    "it; give each save a folder of its own, as in "
                    "fleet.save_persistables('model-1', mode='delta')"
                )


def _holds(save: Save, logged: LoggedTable, tables: list[str] | None) -> bool:
    """Whether a save holds a table that is wanted."""
    names = _names_in(save, logged)
    return bool(names) and (tables is None or not {*tables}.isdisjoint(names))


def _pieces(save: Save, logged: LoggedTable) -> list[Piece]:
    """All that a save holds for a table, of all servers that wrote it."""
    return [piece for name in _names_in(save, logged) for piece in save.pieces_of(name)]


def _names_in(save: Save, logged: LoggedTable) -> list[str]:
    """The tables of a save that hold what a table shall have.

    A group of dense parameters may have been in more tables, or in fewer: that depends on how many
    servers share it.
    """
    name = logged.spec.name
    if isinstance(logged, LoggedDenseTable):
        return [each for each in save.tables if group_of(each) == group_of(name)]
    return [name] if name in save.tables else []


def _remove_begun(place: Path) -> None:
    """Remove the beginnings of a table whose server died before anybody could use it."""
    if (place / "log").exists() and Journal(place / "log").used:
        raise DamagedError(
            f"{place} holds a table that was trained, and {place.with_name('state.json')} does not "
            "name it: it is older than that"
        )
    shutil.rmtree(place, ignore_errors=True)


def _check_names(wanted: list[str] | None, save: Save, made: list[str] | None = None) -> None:
    """Refuse names of tables that a save, or this job, does not have."""
    root, held = save.root, save.tables
    for name in wanted or ():
        if name not in held:
            raise ValueError(f"{root} holds no table {name!r}; name some of {sorted(held)}")
        if made is not None and name not in made:
            raise ValueError(
                f"table {name!r} of {root} cannot be loaded, for no model of this job has one of "
                f"that name; name some of {sorted(set(held) & set(made))}"
            )


def _say_lacking(save: Save, name: str) -> None:
    """A table that was given another name would be trained from nothing, and nobody would know."""
    logger.warning(
        "%s, with which this server begins, holds nothing of table %s, which begins anew; it "
        "holds %s: give a table the name that it was saved under, or init_server(folder, "
        "var_names=[...]) the tables that are wanted",
        save.root,
        name,
        ", ".join(save.tables) or "no table",
    )


def _same(logged: LoggedTable, maker: int, plain: Message, worker: int) -> None:
    """Workers must agree on what a table is."""
    sparse = isinstance(logged, LoggedSparseTable)
    if sparse == ("blocks" in plain):
        raise ValueError(
            f"table {logged.spec.name!r} holds {'rows' if sparse else 'dense parameters'} for "
            f"worker {maker}, and worker {worker} asks for the other; give them names of their own"
        )
    asked = SparseSpec.from_plain(plain) if sparse else DenseSpec.from_plain(plain)
    if asked != logged.spec:
        known, wanted = _flat(logged.spec.to_plain()), _flat(asked.to_plain())
        apart = [name for name in known | wanted if known.get(name) != wanted.get(name)]
        told = "; ".join(
            f"{name} is {known.get(name, 'not set')} for worker {maker}, which came first, and "
            f"{wanted.get(name, 'not set')} for worker {worker}"
            for name in apart
        )
        raise ValueError(
            f"table {asked.name!r} exists already and differs: {told}; give one of them another "
            "name, or the same options on every worker"
        )


def _flat(plain: Message, before: str = "") -> dict[str, str]:
    """The values of a nested description by their dotted names."""
    found: dict[str, str] = {}
    for name, value in plain.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{before}{name}.")
        else:
            found[before + name] = _brief(repr(value))
    return found


def _brief(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"

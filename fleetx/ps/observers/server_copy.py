"""A read-only copy of what one server holds."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fleetx.ps.observers.server_reader import ServerReader
from fleetx.ps.server.logged_dense_table import LoggedDenseTable
from fleetx.ps.server.logged_sparse_table import LoggedSparseTable
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.tables.dense_table import DenseSpec
from fleetx.ps.tables.entries import ShowClickEntry
from fleetx.ps.tables.row_store import Rows
from fleetx.ps.tables.rules import SGD
from fleetx.ps.tables.sparse_spec import Pace, SparseSpec
from fleetx.ps.wire.arrays import Floats, Ids
from fleetx.ps.wire.channel import Access
from fleetx.ps.wire.frames import BadFrameError
from fleetx.ps.wire.messages import Message
from fleetx.ps.wire.versions import NOTHING, Version

logger = logging.getLogger(__name__)

PART_ROWS = 8192
"""Rows that are asked for at once, so that no push waits for long."""
FAILURES = (OSError, RuntimeError, ValueError, BadFrameError)
"""What may come of a server that is dying, loading, or of another version."""


class ServerCopy:
    """Visits a server every few seconds, in a thread of its own; a dead one keeps its last state.

    The copies are tables of a request handler, so that they can be served in turn.
    """

    def __init__(self, endpoint: str, access: Access, *, every: float, server: int = 0) -> None:
        """Describe the copy; ``start`` begins to fill it.

        Args:
            endpoint: of the server.
            access: how it is reached.
            every: seconds between two visits.
            server: its number among those of the job.
        """
        self.endpoint, self._every = endpoint, every
        self._reader = ServerReader(endpoint, access)
        self.handler = RequestHandler(Membership(0), server=server)
        self.handler.lag = self._lag
        self._sparse: dict[str, tuple[LoggedSparseTable, Version]] = {}
        self._dense: dict[str, tuple[LoggedDenseTable, str]] = {}
        self.on_values: Callable[[LoggedDenseTable], None] = lambda table: None
        """Told of dense parameters that have changed."""
        self.visited: float | None = None
        """When the last complete visit began, on the monotonic clock."""
        self.visits, self.full_copies, self.rows_taken = 0, 0, 0
        self.trouble = ""
        """Why rows are no newer than ``visited`` says; empty if the last visit brought all."""
        self._said: type[BaseException] | None = None
        self._stopped, self._news = threading.Event(), threading.Condition()
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    def start(self) -> None:
        """Begin to visit."""
        self._thread.start()

    def stop(self) -> None:
        """Visit no more; what is copied stays."""
        self._stopped.set()
        self._reader.end()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def wait(self, visits: int, timeout: float | None) -> bool:
        """Wait for so many complete visits since the beginning; whether there were."""
        with self._news:
            return self._news.wait_for(lambda: self.visits >= visits, timeout)

    def rows(self, table: str) -> LoggedSparseTable | None:
        """The copy of a table; None before the first one is complete."""
        found = self._sparse.get(table)
        return None if found is None else found[0]

    def values(self) -> list[LoggedDenseTable]:
        """The copies of tables of dense parameters."""
        return [logged for logged, _ in [*self._dense.values()]]

    def _run(self) -> None:
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                self.visit()
            except FAILURES as error:
                self._reader.close()
                self._complain(str(error), type(error))
            except Exception as error:
                # A fault of ours, which may come again at each visit: a thread that ended here
                # would leave rows that get older and older, and nobody would be told.
                self._reader.close()
                self._complain(f"{type(error).__name__}: {error}", type(error), error)
            self._stopped.wait(max(0.0, began + self._every - time.monotonic()))
        self._reader.close()

    def _complain(
        self, text: str, kind: type[BaseException], fault: BaseException | None = None
    ) -> None:
        if not self._stopped.is_set() and not (self.trouble and self._said is kind):
            logger.warning(
                "server %s cannot be followed at the moment, so its rows stay as they are: %s",
                self.endpoint,
                text,
                exc_info=fault,
            )
        with self._news:
            self.trouble, self._said = text, kind
            self._news.notify_all()

    def _lag(self) -> Message:
        """How far behind its server this copy is, for whoever copies it in turn."""
        age = None if self.visited is None else time.monotonic() - self.visited
        return {"age": age, "trouble": self.trouble}

    def visit(self) -> None:
        """Bring all copies up to date."""
        began = time.monotonic()
        listed = self._reader.call({"method": "tables"})
        age = listed.get("age", 0.0)
        if age is None:
            raise RuntimeError(f"the copy that it serves is not complete yet {listed['trouble']}")
        visited = set[str]()
        for number, brief in enumerate(listed["tables"]):
            if brief["kind"] == "sparse":
                self._visit_rows(number, brief)
            elif brief["filled"]:
                self._visit_values(number, brief)
            else:
                continue
            visited.add(str(brief["name"]))
        self._require_all(visited)
        self._note_visit(began - float(age), str(listed.get("trouble", "")))

    def _require_all(self, visited: set[str]) -> None:
        """A table that is gone makes no visit complete: else its rows would pass for new ones."""
        if gone := sorted({*self._sparse, *self._dense} - visited):
            raise ValueError(
                f"it holds no table {', '.join(map(repr, gone))} any more, as when another job was "
                "started at its address, so what was copied gets older; follow the servers of the "
                "job that trains it, or load what this one saves"
            )

    def _note_visit(self, when: float, trouble: str) -> None:
        with self._news:
            self.visited, self.visits = when, self.visits + 1
            if trouble:  # that of a copy that we copy
                self._complain(f"it serves a copy that is no newer: {trouble}", RuntimeWarning)
            elif self.trouble:
                logger.warning("server %s is followed again", self.endpoint)
                self.trouble = ""
            self._news.notify_all()

    def _visit_rows(self, number: int, brief: Message) -> None:
        name = str(brief["name"])
        logged, since = self._sparse.get(name, (None, NOTHING))
        version, changed = self._reader.changes(number, since)
        if changed is None or logged is None:
            logged = self._copied(number, name, int(brief["rows"]))
        else:
            self._take_changes(number, logged, changed)
        self._sparse[name] = logged, version

    def _take_changes(self, number: int, logged: LoggedSparseTable, changed: Ids) -> None:
        for begin in range(0, len(changed), PART_ROWS):
            asked = changed[begin : begin + PART_ROWS]
            ids, rows = self._reader.fetch(number, asked)
            gone = asked if len(ids) == 0 else asked[~np.isin(asked, ids)]
            logged.put_copies(_plain(ids, rows), gone)
            self.rows_taken += len(ids)

    def _described(self, number: int, name: str) -> Message:
        """What a table is; another one may have its number since a server was started again."""
        spec: Message = self._reader.call({"method": "spec", "table": number})["spec"]
        if spec["name"] != name:
            raise RuntimeError(
                f"it was started again with {spec['name']!r} in the place of {name!r}"
            )
        return spec

    def _copied(self, number: int, name: str, size: int) -> LoggedSparseTable:
        """A full copy, which takes the place of the last one when it is complete."""
        described = self._described(number, name)
        spec = _read_only(SparseSpec.from_plain(described))
        made = LoggedSparseTable(spec, self.handler.membership, None)
        made.table.reserve(size)
        bits = (size // PART_ROWS).bit_length()
        for part in range(1 << bits):
            made.put_copies(_plain(*self._reader.scan(number, part, bits)), np.empty(0, np.int64))
        self.handler.adopt(made)
        self.full_copies += 1
        self.rows_taken += len(made.table)
        return made

    def _visit_values(self, number: int, brief: Message) -> None:
        name = str(brief["name"])
        logged, stamp = self._dense.get(name, (None, ""))
        if logged is not None and stamp == brief["stamp"]:
            return
        values, updates = self._reader.read(number)
        if logged is None or len(values) != logged.table.spec.size:
            described = self._described(number, name)
            spec = replace(DenseSpec.from_plain(described), pace=Pace())
            logged = LoggedDenseTable(spec, self.handler.membership, None)
            self.handler.adopt(logged)
        logged.replace({"values": values}, updates)
        self._dense[name] = logged, str(brief["stamp"])
        self.on_values(logged)


def _read_only(spec: SparseSpec) -> SparseSpec:
    """The same rows without what only training needs, the state of the rule, and counts.

    All of them in memory: whoever serves looks any row up.
    """
    entry = None if isinstance(spec.entry, ShowClickEntry) else spec.entry
    return replace(spec, rule=SGD(), entry=entry, pace=Pace(), storage="memory", memory=0)


def _plain(ids: Ids, rows: Floats) -> Rows:
    none = np.empty((len(ids), 0), np.float32)
    return Rows(ids, rows, none, none, np.zeros(len(ids), np.int32))

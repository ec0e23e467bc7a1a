"""A table with a log: each change is applied once, in rounds or as it comes."""

import contextlib
import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.ps.server.changes import Change, joined
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.not_finite import NotFinite
from fleetx.ps.server.staleness import Staleness
from fleetx.ps.tables.cold_rows import NoRoomError
from fleetx.ps.tables.dense_table import DenseTable
from fleetx.ps.tables.journal import Journal
from fleetx.ps.tables.log_file import Record
from fleetx.ps.tables.sparse_table import SparseTable
from fleetx.ps.wire.arrays import Array
from fleetx.ps.wire.frames import HEADER, REQUESTS, Flag, Frame, unpacked
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.wire.pipes import Bytes

logger = logging.getLogger(__name__)

CHANGE, INCOMPLETE_ROUND = 1, 4
"""Kinds of records: a push, and the end of a round that lacks some."""
POLL = 0.5


class TableLostError(RuntimeError):
    """A change failed half way: what the table holds is neither the old nor the new."""


class LoggedTable(ABC):
    """One table with its log; subclasses know what a change is."""

    takes: frozenset[int]
    """The requests that every batch makes of it."""

    def __init__(
        self,
        table: SparseTable | DenseTable,
        membership: Membership,
        folder: Path | None,
        durable: bool,
    ) -> None:
        self.spec = table.spec
        self.membership = membership
        self.changed = threading.Condition(table.lock)
        self.journal = Journal(folder, durable=durable) if folder else None
        self.waits_for_disk = durable
        """Whether a request may have to wait for a disk."""
        self.seen: dict[int, int] = {}
        """Client -> the number of its last change."""
        self.staleness = Staleness()
        self._rounds: dict[int, dict[int, tuple[Frame, Change]]] = {}
        """Version -> worker -> its push, for updates that wait for the other workers."""
        self._waiting_since: dict[int, int] = {}
        """Version -> the number of the first record of its round."""
        self.pulled = self.pushed = 0
        """Rows that were asked for, and rows that gradients came for; of a dense table, numbers."""
        self._table = table
        self._awaiting = 0
        """Who waits for a version."""
        self._lost = ""
        self._rate_conflict = ""
        """What is wrong with the open round: workers want different learning rates."""
        self._pieces: dict[int, dict[Claim, list[Change]]] = {}
        """Version -> who pushes -> what has come of a push that is too large for one frame."""
        self.not_finite = NotFinite(table.spec.name)

    @property
    def version(self) -> int:
        """Updates so far."""
        return self._table.updates

    def change(self, claim: Claim, frame: Frame, body: memoryview) -> None:
        """Apply a push once, however often it is sent; on return it is in the log."""
        change = self.parsed(frame, body)
        with self._table.lock:
            self.require_intact()
            if frame.seq <= self.seen.get(claim.client, 0):
                return
            if self._waits(frame):
                self._check_step(claim.worker, frame)
                self._check_rate(claim.worker, frame)
            count = frame.count
            if not frame.flags & Flag.INITIAL and self.not_finite.found(claim.worker, change):
                # Before it is logged: what is redone must not depend on how a server was begun.
                frame, body, change = self.without_not_finite(frame, change)
            parts: list[Bytes | Array] = []
            if self.journal is not None:
                parts = [claim.packed() + frame.packed(), body]
            self.log_and_apply(CHANGE, parts, lambda: self._accept(claim, frame, change))
            self.seen[claim.client] = frame.seq
            self.pushed += count
            if self._rounds:
                self.try_close_incomplete_rounds()

    @property
    def lost(self) -> bool:
        """Whether a change has failed half way."""
        return bool(self._lost)

    def require_intact(self) -> None:
        """Raise when a change has failed half way."""
        if self._lost:
            raise TableLostError(self._lost)

    def log_and_apply(
        self, kind: int, parts: list[Bytes | Array], change: Callable[[], object]
    ) -> None:
        """Log a change, and make it; one that fails is not acknowledged and not repeated."""
        if self.journal is not None:
            self.journal.append(kind, parts)
        try:
            change()
        except NoRoomError:  # nothing was changed
            if self.journal is not None:
                self.journal.take_back()
            raise
        except Exception as error:
            if self.journal is not None:
                with contextlib.suppress(OSError):  # then the log takes no more records
                    self.journal.take_back()
            raise self.mark_lost(error) from error

    @contextlib.contextmanager
    def lost_on_failure(self) -> Iterator[None]:
        """Inside, a failure leaves the table in an unknown state: it serves nobody any more."""
        try:
            yield
        except Exception as error:
            raise self.mark_lost(error) from error

    def replaced(self) -> contextlib.AbstractContextManager[None]:
        """Inside, everything that the table holds is exchanged."""
        return contextlib.nullcontext()

    def mark_lost(self, error: Exception) -> TableLostError:
        """Serve nothing any more: a change has failed half way."""
        logger.exception("table %s is lost", self.spec.name)
        self._lost = (
            f"table {self.spec.name!r} is lost, for a change of it failed half way "
            f"({type(error).__name__}: {error}); mend the cause and start this server again: "
            "it comes back with all that was acknowledged before"
        )
        return TableLostError(self._lost)

    def _check_step(self, worker: int, frame: Frame) -> None:
        """Pushes that were sent twice are known by their numbers; another old one is a mistake."""
        if frame.step < self.version:
            raise ValueError(
                f"worker {worker} pushed update {frame.step} of table {self.spec.name!r}, which "
                f"has seen {self.version}: another model of this job trains the same table, or "
                "this worker was started again and the others were not; give each model tables of "
                "its own, or start all workers and servers anew"
            )

    def _check_rate(self, worker: int, frame: Frame) -> None:
        """An update for which all workers wait is one step, so it has one learning rate."""
        for other, (theirs, _) in self._rounds.get(frame.step, {}).items():
            if other != worker and not math.isclose(theirs.rate, frame.rate, rel_tol=1e-6):
                self._rate_conflict = (
                    f"workers {other} and {worker} have drifted apart: at update {frame.step + 1} "
                    f"of table {self.spec.name!r} the learning rate is {theirs.rate:.6g} on worker "
                    f"{other} and {frame.rate:.6g} on worker {worker}, and an update that waits "
                    "for all workers has one rate. What changes it must be the same on every "
                    "worker: step schedulers on all of them, and between stretches of data (after "
                    "fleet.settle_workers()) where shares differ in length; or set "
                    "strategy.a_sync = True, where each push has the rate of its worker"
                )
                raise ValueError(self._rate_conflict)

    def _require_one_rate(self) -> None:
        if self._rate_conflict:
            raise ValueError(self._rate_conflict)

    def _waits(self, frame: Frame) -> bool:
        """Whether a push is one of a round."""
        return self.spec.pace.workers > 0 and not frame.flags & Flag.INITIAL

    def _accept(self, claim: Claim, frame: Frame, change: Change) -> None:
        if self._waits(frame):
            if frame.step >= self.version:  # older ones in a log are in the save before it
                self._add_to_round(claim, frame, change)
            return
        self.prepare(change)
        if not frame.flags & Flag.INITIAL:
            self.staleness.pushed(claim.worker, self.version)
        self.apply(frame, change)
        self._tell_changed()

    def _tell_changed(self) -> None:
        """Wake those who wait for a version; mostly there are none, and to find that takes long."""
        if self._awaiting:
            self.changed.notify_all()

    def _add_to_round(self, claim: Claim, frame: Frame, change: Change) -> None:
        """Keep a push for its round, and end the rounds that are complete."""
        number = self.journal.number if self.journal else 0
        self._waiting_since.setdefault(frame.step, number)
        pieces = self._pieces.setdefault(frame.step, {}).setdefault(claim, [])
        pieces.append(change.copied())
        if frame.flags & Flag.MORE:
            return
        self._rounds.setdefault(frame.step, {})[claim.worker] = (frame, joined(pieces))
        del self._pieces[frame.step][claim]
        while len(self._rounds.get(self.version, ())) == self.spec.pace.workers:
            try:
                self._finish_round()
            except NoRoomError:  # whoever pushed last is told so, and comes again
                del self._rounds[self.version][claim.worker]
                raise

    def _finish_round(self) -> None:
        done = self.version
        pushes = self._rounds[done]
        # Added up in the order of the workers, so that a job repeats itself to the last bit.
        ordered = [pushes[worker] for worker in sorted(pushes)]
        change = self.merged([change for _, change in ordered])
        self.prepare(change)
        del self._rounds[done], self._waiting_since[done]
        self._pieces.pop(done, None)
        self.apply(ordered[0][0], change)
        assert self.version == done + 1, "a round is one update"
        self._rate_conflict = ""
        self._tell_changed()

    def close_incomplete_rounds(self) -> None:
        """End rounds that only lack workers which have no data, for ever or for now."""
        while self.version in self._rounds and not {*self._missing()} - {*self.membership.idle()}:
            self.require_intact()
            self.log_and_apply(
                INCOMPLETE_ROUND, [np.array([self.version], np.int64)], self._finish_round
            )

    def try_close_incomplete_rounds(self) -> None:
        """The same where nobody can do anything about a full disk: the server looks again soon."""
        try:
            self.close_incomplete_rounds()
        except OSError as error:
            logger.warning("a round of table %s stays open: %s", self.spec.name, error)

    def oldest_needed(self) -> int:
        """The last record that no open round needs."""
        assert self.journal is not None
        return min([number - 1 for number in self._waiting_since.values()] + [self.journal.number])

    def await_version(self, version: int, patience: float) -> None:
        """Wait, under the lock, until the table has seen so many updates."""

        def ready() -> bool:
            return self.version >= version

        waited = 0.0
        self._awaiting += 1
        try:
            while not self.changed.wait_for(ready, POLL):
                self.require_intact()
                self._require_one_rate()
                self.membership.require_alive()
                self.try_close_incomplete_rounds()
                waited += POLL
                if waited > patience:
                    raise TimeoutError(
                        f"waited {patience:.0f} s for update {version} of table "
                        f"{self.spec.name!r}; workers {self._missing()} have not pushed (set "
                        "FLEETX_TIMEOUT, in seconds, if they are only slow)"
                    )
        finally:
            self._awaiting -= 1

    def _missing(self) -> list[int]:
        here = self._rounds.get(self.version, {})
        return [worker for worker in range(self.membership.workers) if worker not in here]

    def replay(self, after: int) -> None:
        """Take in the records behind a number."""
        assert self.journal is not None
        with self.changed:
            for record in self.journal.records(after):
                self.replay_record(record)

    def replay_record(self, record: Record) -> None:
        """Repeat what a record says."""
        if record.kind == INCOMPLETE_ROUND:
            (version,) = np.frombuffer(record.data, np.int64)
            if version >= self.version:  # else the save knows it; another round may be open
                self._finish_round()
            return
        assert record.kind == CHANGE, f"record {record.number} is of kind {record.kind}"
        claim, rest = Claim.unpacked(record.data)
        frame = unpacked(rest[: HEADER.size], REQUESTS)
        self.seen[claim.client] = max(frame.seq, self.seen.get(claim.client, 0))
        self._accept(claim, frame, self.parsed(frame, rest[HEADER.size :]))

    @abstractmethod
    def reply_bytes(self, frame: Frame) -> int:
        """What a request to look at the table brings back."""

    @abstractmethod
    def parsed(self, frame: Frame, body: memoryview) -> Change:
        """The arrays of a push."""

    @abstractmethod
    def without_not_finite(self, frame: Frame, change: Change) -> tuple[Frame, memoryview, Change]:
        """A push without what is not finite in it, also as it would have been sent."""

    def prepare(self, change: Change) -> None:  # noqa: B027
        """Have room for a change; without it nothing is changed."""

    @abstractmethod
    def apply(self, frame: Frame, change: Change) -> None:
        """Make a change."""

    @abstractmethod
    def merged(self, changes: list[Change]) -> Change:
        """The mean of several changes."""

    def describe(self) -> dict[str, Any]:
        """What a person may want to know."""
        more = {"staleness": self.staleness.describe(), "not_finite": self.not_finite.count}
        return self._table.describe() | more

    @abstractmethod
    def brief(self) -> dict[str, Any]:
        """What tells whether a copy of it is as new as it is."""

    def figures(self) -> dict[str, int]:
        """What it holds and has served, for whoever watches; a look that waits for nobody."""
        held = len(self._table) if isinstance(self._table, SparseTable) else self._table.spec.size
        return {
            "rows" if isinstance(self._table, SparseTable) else "numbers": held,
            "pulled": self.pulled,
            "pushed": self.pushed,
            "updates": self.version,
        }

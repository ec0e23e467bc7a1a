"""What a server does for each request, apart from sockets."""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fleetx.launch.reporter import resident_bytes
from fleetx.ps.server.day_end import Call
from fleetx.ps.server.logged_dense_table import LoggedDenseTable
from fleetx.ps.server.logged_sparse_table import LoggedSparseTable
from fleetx.ps.server.logged_table import LoggedTable
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.not_finite import SKIP
from fleetx.ps.server.repeated_requests import RepeatedRequests
from fleetx.ps.server.service_rates import ServiceRates
from fleetx.ps.server.state_folder import StateFolder
from fleetx.ps.server.table_store import LOG_LIMIT, StorageOptions, TableStore
from fleetx.ps.server.worker_barriers import Connected, WorkerBarriers, always
from fleetx.ps.tables.checksums import DamagedError
from fleetx.ps.tables.entries import check_unseen_days, unseen_days_of
from fleetx.ps.wire.arrays import Floats
from fleetx.ps.wire.frames import CHANGING, LOOKING, BadFrameError, Flag, Frame, Op, name_of
from fleetx.ps.wire.handshake import OBSERVER, Claim
from fleetx.ps.wire.messages import Message
from fleetx.ps.wire.pipes import LARGE

logger = logging.getLogger(__name__)

_LOOKS = ("describe", "heartbeat", "spec", "tables")
"""What callers may ask for that are no workers."""
_QUICK = CHANGING | {Op.PULL, Op.READ}
QUICK_BYTES = 2 * LARGE
"""A request or an answer that is longer takes a while."""
_COUNTED = ("pulled", "pushed", "updates")
"""Figures that rise, and whose rates are reported."""


class RequestHandler:
    """Answers the requests of all workers; its methods are called by many threads."""

    def __init__(
        self,
        membership: Membership,
        *,
        server: int = 0,
        servers: int = 1,
        folder: Path | None = None,
        patience: float = 300.0,
        durable: bool = False,
        log_limit: int = LOG_LIMIT,
        on_nan: str = SKIP,
    ) -> None:
        self.membership = membership
        self.patience = patience
        membership.patience = patience
        with _told_what_to_do(folder):
            self._state = None if folder is None else StateFolder(folder)
            storage = StorageOptions(
                state=self._state, durable=durable, log_limit=log_limit, on_nan=on_nan
            )
            self._store = TableStore(membership, server, servers, storage)
            self.barriers = self._opened_barriers()
        self._tables = self._store.tables
        self._repeated = RepeatedRequests()
        self._rates, self._began = ServiceRates(), time.monotonic()
        self.connections: Callable[[], int] = lambda: 0
        """How many there are; set by whoever has the sockets."""
        self.lag: Callable[[], Message] = dict
        """How far a copy is behind its server; nothing where rows are trained."""
        if membership.job_over:
            logger.warning(
                "the job whose state is in %s is over: this server ends, and empties the folder, "
                "so that the next job begins anew",
                folder,
            )
        self._calls: dict[str, Callable[[Claim, Message], Message]] = {
            "await": self._await,
            "began": lambda claim, message: {
                "saved": self._store.preloads,
                "folder": self._store.preloads_all_of,
            },
            "create": self._create,
            "describe": self._describe,
            "finish": self._finish,
            "first_said": self._first_facts,
            "heartbeat": lambda claim, message: {},
            "load": lambda claim, message: self._only_once(claim, message, self._load),
            "rest": self._rest,
            "saved": self._saved,
            "saved_sizes": self._saved_sizes,
            "save": lambda claim, message: self._only_once(claim, message, self._save),
            "shrink": lambda claim, message: self._only_once(claim, message, self._shrink),
            "spec": self._spec,
            "tables": self._list,
        }
        self._waiting_calls: dict[str, Callable[[Claim, Message, Connected], Message]] = {
            "agree": self._agree,
            "tick": self._tick,
        }

    def _opened_barriers(self) -> WorkerBarriers:
        if self._state is None:
            return WorkerBarriers(self.membership)
        made = WorkerBarriers(self.membership, self._state.barriers)
        self._state.note_barriers(made.identity)
        return made

    def preload(self, folder: Path | None, tables: list[str] | None) -> None:
        """Let tables begin with what a save holds; those that came back from death do not."""
        self._store.preload(folder, tables)

    def call(self, claim: Claim, message: Message, connected: Connected = always) -> Message:
        """Answer one of the rare requests; one that waits for others ends with its connection."""
        name = str(message.get("method"))
        if name not in _LOOKS and claim.worker == OBSERVER:
            raise BadFrameError(f"an observer must not ask for {message.get('method')!r}")
        if name not in self._calls and name not in self._waiting_calls:
            raise BadFrameError(f"there is no method {message.get('method')!r}")
        try:
            if name in self._waiting_calls:
                return self._waiting_calls[name](claim, message, connected)
            return self._calls[name](claim, message)
        except (KeyError, TypeError) as error:
            raise BadFrameError(f"{message.get('method')} was asked wrongly ({error!r})") from None

    @staticmethod
    def check_observer(frame: Frame) -> None:
        """Let a caller that is no worker look, and nothing else."""
        looks = frame.op in LOOKING or frame.op == Op.CALL
        if not looks or frame.flags & Flag.TRAIN:
            raise BadFrameError(f"an observer must not {name_of(frame.op)} what it would change")

    def sparse(self, frame: Frame) -> LoggedSparseTable:
        """The sparse table that a frame names."""
        found = self._found(frame.table)
        if not isinstance(found, LoggedSparseTable):
            raise BadFrameError(f"table {frame.table} is dense")
        return found

    def dense(self, frame: Frame) -> LoggedDenseTable:
        """The dense table that a frame names."""
        found = self._found(frame.table)
        if not isinstance(found, LoggedDenseTable):
            raise BadFrameError(f"table {frame.table} is sparse")
        return found

    def quick_table(self, frame: Frame) -> LoggedTable | None:
        """The table of a request that takes no time and waits for nobody; None for all others."""
        op = frame.op
        if op not in _QUICK or frame.body > QUICK_BYTES:
            return None
        logged = self._found(frame.table)
        if logged.waits_for_disk or op not in logged.takes:  # the other kind is refused elsewhere
            return None
        if op in CHANGING:
            return logged
        waits = frame.step > logged.version or logged.reply_bytes(frame) > QUICK_BYTES
        return None if waits else logged

    def _found(self, number: int) -> LoggedTable:
        if number >= len(self._tables):
            raise BadFrameError(f"there is no table {number}")
        return self._tables[number]

    def pull(
        self, logged: LoggedSparseTable, claim: Claim, frame: Frame, body: memoryview, out: Floats
    ) -> None:
        """Rows for ids, once the table has come to the version asked for."""
        if frame.step > logged.version:
            with logged.changed:
                logged.await_version(frame.step, self.patience)
        logged.pull(claim, frame, body, out)

    def _create(self, claim: Claim, message: Message) -> Message:
        number, logged = self._store.create(str(message["kind"]), message["spec"], claim.worker)
        return {"table": number, "version": logged.version}

    def adopt(self, logged: LoggedTable) -> None:
        """Serve a table that was made elsewhere, in the place of the one of its name."""
        self._store.adopt(logged)

    def checkpoint(self, *, force: bool = False) -> None:
        """Save tables whose log has become long, and begin their logs anew."""
        self._store.checkpoint(force=force)

    def clear(self) -> None:
        """After a job that came to its end: the next one in this folder begins anew."""
        if self._state is not None and self.membership.job_over:
            self._store.clear()
            # What says that the job is over goes last, for a server that dies here.
            shutil.rmtree(self._state.barriers_place, ignore_errors=True)

    def _agree(self, claim: Claim, message: Message, connected: Connected) -> Message:
        value = self.barriers.agree(
            str(message["topic"]),
            int(message["number"]),
            claim.worker,
            float(message["value"]),
            strict=bool(message["strict"]),
            patience=self.patience,
            connected=connected,
        )
        return {"value": value}

    def _await(self, claim: Claim, message: Message) -> Message:
        for logged in self._tables:
            if logged.spec.name == message["table"]:
                with logged.changed:
                    logged.await_version(int(message["version"]), self.patience)
        return {}

    def tidy(self) -> None:
        """What nobody asks for: rounds that wait for workers which are done, and long logs."""
        for logged in self._tables:
            with logged.changed:
                if not logged.lost:
                    logged.try_close_incomplete_rounds()
        self.checkpoint()

    def figures(self) -> dict[str, dict[str, int]]:
        """What each table holds and has served so far."""
        return {logged.spec.name: logged.figures() for logged in self._tables}

    def _tick(self, claim: Claim, message: Message, connected: Connected) -> Message:
        step, bound, done = (int(message[name]) for name in ("step", "bound", "done"))
        lead = self.barriers.tick(
            claim.worker, step, bound, done, patience=self.patience, connected=connected
        )
        return {"lead": lead}

    def _finish(self, claim: Claim, message: Message) -> Message:
        self.barriers.finish(claim.worker)
        return {}

    def _first_facts(self, claim: Claim, message: Message) -> Message:
        facts = {str(name): str(value) for name, value in message["facts"].items()}
        worker, facts = self.barriers.first_facts(str(message["topic"]), claim.worker, facts)
        return {"worker": worker, "facts": facts}

    def _rest(self, claim: Claim, message: Message) -> Message:
        self.barriers.rest(claim.worker, bool(message["resting"]))
        for logged in self._tables:
            with logged.changed:
                logged.try_close_incomplete_rounds()
        return {}

    def _describe(self, claim: Claim, message: Message) -> Message:
        return self.report()

    def report(self) -> Message:
        """What a person may want to know: of the process, and of each table."""
        dead = self.membership.dead()
        return {
            "tables": {logged.spec.name: self._report_of(logged) for logged in [*self._tables]},
            "largest_lead": self.barriers.largest_lead,
            "dead": dead,
            "dead_workers": len(dead),
            "connections": self.connections(),
            "pid": os.getpid(),
            "memory": resident_bytes(),
            "uptime": time.monotonic() - self._began,
        }

    def _report_of(self, logged: LoggedTable) -> Message:
        figures = {name: n for name, n in logged.figures().items() if name in _COUNTED}
        rates = {
            f"{name}_per_s": round(rate, 3)
            for name, rate in self._rates.per_second(logged.spec.name).items()
            if name in _COUNTED
        }
        log = 0 if logged.journal is None else logged.journal.bytes
        return logged.describe() | figures | rates | {"log_bytes": log}

    def take_rates(self) -> None:
        """Note how much was done by now."""
        self._rates.take(self.figures())

    def _list(self, claim: Claim, message: Message) -> Message:
        """The tables in brief, for whoever keeps copies of them."""
        # The age before the tables, which may be exchanged meanwhile: rows are no older than told.
        lag = self.lag()
        return {"tables": [logged.brief() for logged in [*self._tables]], **lag}

    def _spec(self, claim: Claim, message: Message) -> Message:
        logged = self._found(int(message["table"]))
        kind = "sparse" if isinstance(logged, LoggedSparseTable) else "dense"
        return {"kind": kind, "spec": logged.spec.to_plain()}

    def _only_once(
        self, claim: Claim, message: Message, work: Callable[[Claim, Message], Message]
    ) -> Message:
        number = message.get("call")
        number = None if number is None else int(number)
        return self._repeated.answer(claim.client, number, lambda: work(claim, message))

    def _shrink(self, claim: Claim, message: Message) -> Message:
        number = message.get("call")
        call = None if number is None else Call(claim.client, int(number))
        tables = {
            each.spec.name: each for each in self._tables if isinstance(each, LoggedSparseTable)
        }
        if (name := message.get("table")) is not None:
            if name not in tables:
                raise ValueError(f"there is no table {name!r} of rows; name one of {[*tables]}")
            tables = {name: tables[name]}
        asked = message["threshold"]
        threshold = None if asked is None else check_unseen_days(asked)
        gone = [
            logged.shrink(threshold or unseen_days_of(logged.table.spec.entry), call)
            for logged in tables.values()
        ]
        return {"removed": sum(gone)}

    def _save(self, claim: Claim, message: Message) -> Message:
        folder, mark = Path(str(message["folder"])), bool(message.get("mark", True))
        worthy = bool(message.get("worthy", False))
        pieces = self._store.save(folder, delta=bool(message["delta"]), mark=mark, worthy=worthy)
        return {"tables": [*pieces], "pieces": pieces}

    def _saved(self, claim: Claim, message: Message) -> Message:
        self._store.mark_saved()
        return {}

    def _saved_sizes(self, claim: Claim, message: Message) -> Message:
        folder = message.get("folder")
        return {"sizes": self._store.saved_sizes(None if folder is None else Path(str(folder)))}

    def _load(self, claim: Claim, message: Message) -> Message:
        return {**self.load(Path(str(message["folder"])), message.get("tables"))}

    def load(self, root: Path, tables: list[str] | None = None) -> dict[str, list[str]]:
        """Set the tables that exist to this server's share of a save; what they do not share."""
        return self._store.load(root, tables)


@contextlib.contextmanager
def _told_what_to_do(folder: Path | None) -> Iterator[None]:
    """A server whose state is damaged does not begin: it would train something else."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(
            f"this server cannot go on from {folder}: {error}. Put back what is missing or changed "
            "from a copy; or empty the folders of all servers of this job and begin with its last "
            "save: fleet.init_server(folder)"
        ) from error

"""What a server does for its workers, apart from sockets."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from fleetx.ps.server.logged_dense_table import ServedDense
from fleetx.ps.server.logged_sparse_table import Call, ServedSparse
from fleetx.ps.server.logged_table import Served
from fleetx.ps.server.membership import Members
from fleetx.ps.server.repeated_requests import Once
from fleetx.ps.server.table_store import LOG_LIMIT, Keeping, Shelf
from fleetx.ps.server.worker_barriers import Meetings
from fleetx.ps.wire.arrays import Floats
from fleetx.ps.wire.frames import BadFrameError, Frame
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.wire.messages import Message

logger = logging.getLogger(__name__)


class Desk:
    """Answers requests, each by what it is about."""

    def __init__(
        self,
        members: Members,
        *,
        server: int = 0,
        servers: int = 1,
        folder: Path | None = None,
        patience: float = 300.0,
        durable: bool = False,
        log_limit: int = LOG_LIMIT,
    ) -> None:
        self.members = members
        self.patience = patience
        members.patience = patience
        keeping = Keeping(folder=folder, durable=durable, log_limit=log_limit)
        self._folder = None if folder is None else folder / "meetings"
        self._shelf = Shelf(members, server, servers, keeping)
        self._tables = self._shelf.tables
        self._once = Once()
        self.meetings = Meetings(members, self._folder)
        if members.over:
            logger.warning(
                "the job whose state is in %s is over: this server ends, and empties the folder, "
                "so that the next job begins anew",
                folder,
            )
        self._calls: dict[str, Callable[[Claim, Message], Message]] = {
            "agree": self._agree,
            "await": self._await,
            "began": lambda claim, said: {"saved": self._shelf.preloads},
            "create": self._create,
            "describe": self._describe,
            "finish": self._finish,
            "first_said": self._first_said,
            "heartbeat": lambda claim, said: {},
            "load": lambda claim, said: self._only_once(claim, said, self._load),
            "rest": self._rest,
            "save": lambda claim, said: self._only_once(claim, said, self._save),
            "shrink": lambda claim, said: self._only_once(claim, said, self._shrink),
            "tick": self._tick,
        }

    def preload(self, folder: Path | None, tables: list[str] | None) -> None:
        """Let tables begin with what a save holds; those that came back from death do not."""
        self._shelf.preload(folder, tables)

    def call(self, claim: Claim, message: Message) -> Message:
        """Answer one of the rare requests."""
        method = self._calls.get(str(message.get("method")))
        if method is None:
            raise BadFrameError(f"there is no method {message.get('method')!r}")
        try:
            return method(claim, message)
        except (KeyError, TypeError) as error:
            raise BadFrameError(f"{message.get('method')} was asked wrongly ({error!r})") from None

    def sparse(self, frame: Frame) -> ServedSparse:
        """The sparse table that a frame names."""
        found = self._found(frame.table)
        if not isinstance(found, ServedSparse):
            raise BadFrameError(f"table {frame.table} is dense")
        return found

    def dense(self, frame: Frame) -> ServedDense:
        """The dense table that a frame names."""
        found = self._found(frame.table)
        if not isinstance(found, ServedDense):
            raise BadFrameError(f"table {frame.table} is sparse")
        return found

    def _found(self, number: int) -> Served:
        if number >= len(self._tables):
            raise BadFrameError(f"there is no table {number}")
        return self._tables[number]

    def pull(
        self, served: ServedSparse, claim: Claim, frame: Frame, body: memoryview, out: Floats
    ) -> None:
        """Rows for ids, once the table has come to the version asked for."""
        if frame.step > served.version:
            with served.changed:
                served.await_version(frame.step, self.patience)
        served.pull(claim, frame, body, out)

    def _create(self, claim: Claim, said: Message) -> Message:
        number, served = self._shelf.create(str(said["kind"]), said["spec"], claim.worker)
        return {"table": number, "version": served.version}

    def checkpoint(self, *, force: bool = False) -> None:
        """Save tables whose log has become long, and begin their logs anew."""
        self._shelf.checkpoint(force=force)

    def clear(self) -> None:
        """After a job that came to its end: the next one in this folder begins anew."""
        if self._folder is not None and self.members.over:
            self._shelf.clear()
            # What says that the job is over goes last, for a server that dies here.
            shutil.rmtree(self._folder, ignore_errors=True)

    def _agree(self, claim: Claim, said: Message) -> Message:
        value = self.meetings.agree(
            str(said["topic"]),
            int(said["number"]),
            claim.worker,
            float(said["value"]),
            strict=bool(said["strict"]),
            patience=self.patience,
        )
        return {"value": value}

    def _await(self, claim: Claim, said: Message) -> Message:
        for served in self._tables:
            if served.spec.name == said["table"]:
                with served.changed:
                    served.await_version(int(said["version"]), self.patience)
        return {}

    def tidy(self) -> None:
        """What nobody asks for: rounds that wait for workers which are done, and long logs."""
        for served in self._tables:
            with served.changed:
                if not served.lost:
                    served.try_close_short()
        self.checkpoint()

    def _tick(self, claim: Claim, said: Message) -> Message:
        step, bound, done = (int(said[name]) for name in ("step", "bound", "done"))
        return {"lead": self.meetings.tick(claim.worker, step, bound, done)}

    def _finish(self, claim: Claim, said: Message) -> Message:
        self.meetings.finish(claim.worker)
        return {}

    def _first_said(self, claim: Claim, said: Message) -> Message:
        facts = {str(name): str(value) for name, value in said["facts"].items()}
        worker, facts = self.meetings.first_said(str(said["topic"]), claim.worker, facts)
        return {"worker": worker, "facts": facts}

    def _rest(self, claim: Claim, said: Message) -> Message:
        self.meetings.rest(claim.worker, bool(said["resting"]))
        for served in self._tables:
            with served.changed:
                served.try_close_short()
        return {}

    def _describe(self, claim: Claim, said: Message) -> Message:
        tables = {served.spec.name: served.describe() for served in self._tables}
        return {
            "tables": tables,
            "largest_lead": self.meetings.largest_lead,
            "dead": self.members.dead(),
        }

    def _only_once(
        self, claim: Claim, said: Message, work: Callable[[Claim, Message], Message]
    ) -> Message:
        number = said.get("call")
        number = None if number is None else int(number)
        return self._once.answer(claim.client, number, lambda: work(claim, said))

    def _shrink(self, claim: Claim, said: Message) -> Message:
        number = said.get("call")
        call = None if number is None else Call(claim.client, int(number))
        tables = {each.spec.name: each for each in self._tables if isinstance(each, ServedSparse)}
        if (name := said.get("table")) is not None:
            if name not in tables:
                raise ValueError(f"there is no table {name!r} of rows; name one of {[*tables]}")
            tables = {name: tables[name]}
        gone = [served.shrink(int(said["threshold"]), call) for served in tables.values()]
        return {"removed": sum(gone)}

    def _save(self, claim: Claim, said: Message) -> Message:
        folder, mark = Path(str(said["folder"])), bool(said.get("mark", True))
        return {"tables": self._shelf.save(folder, delta=bool(said["delta"]), mark=mark)}

    def _load(self, claim: Claim, said: Message) -> Message:
        self.load(Path(str(said["folder"])), said.get("tables"))
        return {}

    def load(self, root: Path, tables: list[str] | None = None) -> None:
        """Set the tables that exist to this server's share of a save."""
        self._shelf.load(root, tables)

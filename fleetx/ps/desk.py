"""What a server does for its workers, apart from sockets."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleetx.ps import restoring, snapshot
from fleetx.ps.dense_table import DenseSpec
from fleetx.ps.frames import BadFrameError, Frame
from fleetx.ps.handshake import Claim
from fleetx.ps.hashing import Floats
from fleetx.ps.meetings import Meetings
from fleetx.ps.members import Members
from fleetx.ps.served import Served
from fleetx.ps.served_dense import ServedDense
from fleetx.ps.served_sparse import ServedSparse
from fleetx.ps.sparse_spec import SparseSpec

logger = logging.getLogger(__name__)

Message = dict[str, Any]
LOG_LIMIT = 1 << 30
"""Bytes of log of one table after which the table is saved and the log begins anew."""


class Desk:
    """The tables of one server."""

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
        self._server, self._servers = server, servers
        self._folder, self._durable, self._log_limit = folder, durable, log_limit
        self.patience = patience
        self._lock = threading.Lock()
        self._tables: list[Served] = []
        self._saving = threading.Lock()
        self.meetings = Meetings(members, folder / "meetings" if folder else None)
        self._calls: dict[str, Callable[[Claim, Message], Message]] = {
            "agree": self._agree,
            "await": self._await,
            "create": self._create,
            "describe": self._describe,
            "finish": self._finish,
            "heartbeat": lambda claim, said: {},
            "load": self._load,
            "rest": self._rest,
            "save": self._save,
            "shrink": self._shrink,
            "tick": self._tick,
        }
        self._preload: Path | None = None
        self._preloaded: list[str] | None = None
        if folder is not None:
            self._recover(folder)

    def preload(self, folder: Path | None, tables: list[str] | None) -> None:
        """Let tables begin with what a save holds; those that came back from death do not."""
        self._preload, self._preloaded = folder, tables

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

    def pull(self, claim: Claim, frame: Frame, body: memoryview, out: Floats) -> None:
        """Rows for ids, once the table has come to the version asked for."""
        served = self.sparse(frame)
        if frame.step > served.version:
            with served.changed:
                served.await_version(frame.step, self.patience)
        served.pull(claim, frame, body, out)

    def _create(self, claim: Claim, said: Message) -> Message:
        with self._lock:
            form = said["spec"]
            for number, served in enumerate(self._tables):
                if served.spec.name == form["name"]:
                    _same(served, said)
                    return {"table": number}
            number = len(self._tables)
            if self._folder is not None:
                place = self._folder / f"{number:04d}"
                place.mkdir(parents=True, exist_ok=True)
                kept = {"kind": said["kind"], "spec": form}
                made = self._make(said["kind"], form, place)
                snapshot.write_json(place / "spec.json", kept)
            else:
                made = self._make(said["kind"], form, None)
            self._tables.append(made)
            if self._preload is not None:
                self._fill(made, self._preload, self._preloaded)
            return {"table": number}

    def _make(self, kind: str, form: Message, place: Path | None) -> Served:
        log = place / "log" if place else None
        if kind == "sparse":
            return ServedSparse(SparseSpec.of(form), self.members, log, self._durable)
        return ServedDense(DenseSpec.of(form), self.members, log, self._durable)

    def _recover(self, folder: Path) -> None:
        for path in sorted(folder.glob("[0-9]*/spec.json")):
            kept = snapshot.read_json(path)
            served = self._make(kept["kind"], kept["spec"], path.parent)
            restoring.recover(served, path.parent / "saved")
            self._tables.append(served)
            logger.warning("table %s is back with %s", served.spec.name, served.describe())

    def checkpoint(self, *, force: bool = False) -> None:
        """Save tables whose log has become long, and begin their logs anew."""
        if self._folder is None:
            return
        with self._saving:
            for number, served in enumerate(self._tables):
                assert served.journal is not None
                if force or served.journal.bytes > self._log_limit:
                    with served.changed:
                        served.journal.cut()
                    place = self._folder / f"{number:04d}" / "saved"
                    manifest = snapshot.save(served, place, own=True)
                    served.journal.forget(manifest["after"])

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
                served.close_short()
        self.checkpoint()

    def _tick(self, claim: Claim, said: Message) -> Message:
        step, bound, done = (int(said[name]) for name in ("step", "bound", "done"))
        return {"lead": self.meetings.tick(claim.worker, step, bound, done)}

    def _finish(self, claim: Claim, said: Message) -> Message:
        self.meetings.finish(claim.worker)
        return {}

    def _rest(self, claim: Claim, said: Message) -> Message:
        self.meetings.rest(claim.worker, bool(said["resting"]))
        for served in self._tables:
            with served.changed:
                served.close_short()
        return {}

    def _describe(self, claim: Claim, said: Message) -> Message:
        tables = {served.spec.name: served.describe() for served in self._tables}
        return {
            "tables": tables,
            "largest_lead": self.meetings.largest_lead,
            "dead": self.members.dead(),
        }

    def _shrink(self, claim: Claim, said: Message) -> Message:
        gone = 0
        for served in self._tables:
            wanted = said.get("table") in (None, served.spec.name)
            if wanted and isinstance(served, ServedSparse):
                gone += served.shrink(int(said["threshold"]))
        return {"removed": gone}

    def _save(self, claim: Claim, said: Message) -> Message:
        root, delta = Path(str(said["folder"])), bool(said["delta"])
        names = []
        with self._saving:
            for served in self._tables:
                place = root / served.spec.name / f"server-{self._server}"
                snapshot.save(served, place, delta=delta)
                names.append(served.spec.name)
        return {"tables": names}

    def _load(self, claim: Claim, said: Message) -> Message:
        self.load(Path(str(said["folder"])), said.get("tables"))
        return {}

    def load(self, root: Path, tables: list[str] | None = None) -> None:
        """Take this server's share of a save into the tables that exist."""
        for served in self._tables:
            self._fill(served, root, tables)
        self.checkpoint(force=True)  # what was loaded is in no log

    def _fill(self, served: Served, root: Path, tables: list[str] | None) -> None:
        manifest, name = snapshot.read_json(root / snapshot.MANIFEST), served.spec.name
        if name not in manifest["tables"] or (tables is not None and name not in tables):
            return
        folders = [root / name / f"server-{i}" for i in range(manifest["servers"])]
        if isinstance(served, ServedSparse):
            restoring.load_sparse(served, folders, self._server, self._servers)
        elif isinstance(served, ServedDense):
            restoring.load_dense(served, folders)


def _same(served: Served, said: Message) -> None:
    """Workers must agree on what a table is."""
    kind = SparseSpec if said["kind"] == "sparse" else DenseSpec
    asked = kind.of(said["spec"])
    if asked != served.spec:
        raise ValueError(
            f"table {asked.name!r} exists already and differs: it is {served.spec}, and "
            f"{asked} was asked for; give one of them another name, or the same options on every "
            "worker"
        )

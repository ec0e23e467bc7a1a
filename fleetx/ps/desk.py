"""What a server does for its workers, apart from sockets."""

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleetx.ps import placing, restoring, snapshot
from fleetx.ps.dense_table import DenseSpec
from fleetx.ps.frames import BadFrameError, Frame
from fleetx.ps.handshake import Claim
from fleetx.ps.hashing import Floats
from fleetx.ps.meetings import Meetings
from fleetx.ps.members import Members
from fleetx.ps.once import Once
from fleetx.ps.served import Served
from fleetx.ps.served_dense import ServedDense
from fleetx.ps.served_sparse import Call, ServedSparse
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
        self._once = Once()
        members.patience = patience
        self.meetings = Meetings(members, folder / "meetings" if folder else None)
        self._calls: dict[str, Callable[[Claim, Message], Message]] = {
            "agree": self._agree,
            "await": self._await,
            "create": self._create,
            "describe": self._describe,
            "finish": self._finish,
            "heartbeat": lambda claim, said: {},
            "load": lambda claim, said: self._only_once(claim, said, self._load),
            "rest": self._rest,
            "save": lambda claim, said: self._only_once(claim, said, self._save),
            "shrink": lambda claim, said: self._only_once(claim, said, self._shrink),
            "tick": self._tick,
        }
        self._preload: Path | None = None
        self._preloaded: list[str] | None = None
        if folder is not None:
            self._recover(folder)
            if members.over:
                logger.warning(
                    "the job whose state is in %s is over: this server ends, and empties the "
                    "folder, so that the next job begins anew",
                    folder,
                )

    def preload(self, folder: Path | None, tables: list[str] | None) -> None:
        """Let tables begin with what a save holds; those that came back from death do not."""
        if folder is not None:
            _check_names(tables, folder, snapshot.read_json(folder / snapshot.MANIFEST)["tables"])
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
                    return {"table": number, "version": served.version}
            number = len(self._tables)
            made = self._made(number, said["kind"], form)
            self._tables.append(made)
            return {"table": number, "version": made.version}

    def _made(self, number: int, kind: str, form: Message) -> Served:
        """A new table; recovery knows of it when all that it begins with is on the disk."""
        place = None
        if self._folder is not None:
            place = self._folder / f"{number:04d}"
            shutil.rmtree(place, ignore_errors=True)  # of a server that died just here
            place.mkdir(parents=True)
        made = self._make(kind, form, place)
        if self._preload is not None and self._fill(made, self._preload, self._preloaded):
            self._write_down(number, made)  # what was loaded is in no log
        if place is not None:
            snapshot.write_json(place / "spec.json", {"kind": kind, "spec": form})
        return made

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
        if self._folder is None or not self._saving.acquire(blocking=force):
            return  # whoever saves now takes long; the next look is soon
        try:
            for number, served in enumerate(self._tables):
                assert served.journal is not None
                long = force or served.journal.bytes > self._log_limit
                if long and not served.lost:
                    self._write_down(number, served)
        finally:
            self._saving.release()

    def _write_down(self, number: int, served: Served) -> None:
        if self._folder is None:
            return
        assert served.journal is not None
        with served.changed:
            served.journal.cut()
        place = self._folder / f"{number:04d}" / "saved"
        manifest = snapshot.save(served, place, mark=False)
        served.journal.forget(manifest["after"])

    def clear(self) -> None:
        """After a job that came to its end: the next one in this folder begins anew.

        What says that the job is over goes last, for a server that dies here.
        """
        if self._folder is not None and self.members.over:
            for served in self._tables:
                assert served.journal is not None
                served.journal.close()
            for place in sorted(self._folder.glob("[0-9]*")):
                shutil.rmtree(place, ignore_errors=True)
            shutil.rmtree(self._folder / "meetings", ignore_errors=True)

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
        root, delta = Path(str(said["folder"])), bool(said["delta"])
        mark = bool(said.get("mark", True))
        names = []
        with self._saving:
            for served in self._tables:
                place = root / served.spec.name / f"server-{self._server}"
                snapshot.save(served, place, delta=delta, mark=mark)
                names.append(served.spec.name)
        return {"tables": names}

    def _load(self, claim: Claim, said: Message) -> Message:
        self.load(Path(str(said["folder"])), said.get("tables"))
        return {}

    def load(self, root: Path, tables: list[str] | None = None) -> None:
        """Set the tables that exist to this server's share of a save."""
        held = snapshot.read_json(root / snapshot.MANIFEST)["tables"]
        _check_names(tables, root, held, [served.spec.name for served in self._tables])
        with self._saving:
            for number, served in enumerate(self._tables):
                served.require_whole()
                if self._fill(served, root, tables):
                    with served.vital():
                        self._write_down(number, served)  # what was loaded is in no log

    def _fill(self, served: Served, root: Path, tables: list[str] | None) -> bool:
        """Load a table, if a save holds it and it is wanted; whether that is so."""
        manifest, name = snapshot.read_json(root / snapshot.MANIFEST), served.spec.name
        if name not in manifest["tables"] or (tables is not None and name not in tables):
            return False
        folders = [placing.found(root / name / f"server-{i}") for i in range(manifest["servers"])]
        if isinstance(served, ServedSparse):
            restoring.load_sparse(served, folders, self._server, self._servers)
        elif isinstance(served, ServedDense):
            restoring.load_dense(served, folders)
        return True


def _check_names(
    wanted: list[str] | None, root: Path, held: list[str], made: list[str] | None = None
) -> None:
    """Refuse names of tables that a save, or this job, does not have."""
    for name in wanted or ():
        if name not in held:
            raise ValueError(f"{root} holds no table {name!r}; name some of {sorted(held)}")
        if made is not None and name not in made:
            raise ValueError(
                f"table {name!r} of {root} cannot be loaded, for no model of this job has one of "
                f"that name; name some of {sorted(set(held) & set(made))}"
            )


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

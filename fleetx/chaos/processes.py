"""Servers and workers as processes of their own, quick to start because they are forked.

They are forked from a process that has imported this module, and with it all that they need.
"""

import contextlib
import logging
import os
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.chaos.lanes import CROWD, DIM, NUMBERS, ROWS, Progress, crowding, ids_of, specs
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.server.server import Server
from fleetx.ps.tables import disk_table
from fleetx.ps.tables.checksums import DamagedError
from fleetx.ps.tables.dense_table import DenseTable
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.wire.arrays import Floats
from fleetx.ps.wire.channel import Access
from fleetx.ps.wire.frames import Flag
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.worker.client import Client
from fleetx.ps.worker.heartbeat import Heartbeat
from fleetx.ps.worker.table_handle import TableHandle

LOG_LIMIT = 1 << 14
"""Bytes after which a server writes a checkpoint: soon, so that many are killed while they do."""
CHECKPOINTS = 0.02
"""Seconds between two looks whether it is time for one."""
_AGAIN = 0.01


@dataclass(frozen=True)
class JobOptions:
    """What servers and workers of a job must know."""

    mode: str
    workers: int
    endpoints: tuple[str, ...]
    token: bytes
    folder: Path
    patience: float
    dense: bool
    """Whether there is a table of dense parameters beside that of rows."""
    storage: str = "memory"
    """Where rows are that are seldom used."""


def warm_up_dense() -> None:
    """Load compiled code of dense tables, before processes are forked."""
    DenseTable(specs("async", 1)[1]).push(np.ones(NUMBERS, np.float32))


def warm_up() -> None:
    """Load compiled code, before processes are forked."""
    for storage in ("memory", "disk"):
        table = disk_table.made(specs("async", 1, storage)[0])
        for step in (1, 2, 1):
            ids = crowding(step)
            table.pull(ids, np.empty((CROWD, DIM), np.float32), train=True)
            table.push(ids, np.ones((CROWD, DIM), np.float32), unique=True)
        IdBatch.of(ids, 1)


def serve(job: JobOptions, number: int, started: Any) -> None:
    """Be a server until killed, or until all workers are done.

    Args:
        job: whose.
        number: of this server.
        started: is sent "" when it serves, or why it does not.
    """
    with _logged(job.folder / f"server-{number}.txt"):
        host, _, port = job.endpoints[number].rpartition(":")
        try:
            handler = RequestHandler(
                Membership(job.workers),
                folder=job.folder / f"state-{number}",
                patience=job.patience,
                log_limit=LOG_LIMIT * (1 if job.storage == "memory" else CROWD // ROWS),
            )
            server = Server((host, int(port)), handler, job.token)
        except (DamagedError, OSError) as error:
            started.send(f"{type(error).__name__}: {error}")
            return
        threading.Thread(target=_checkpoints, args=(handler,), daemon=True).start()
        started.send("")
        with server:
            server.run()


def _checkpoints(handler: RequestHandler) -> None:
    while not handler.membership.ended.wait(CHECKPOINTS):
        with contextlib.suppress(OSError):  # a disk that is full for a while
            handler.checkpoint()


@dataclass(frozen=True)
class Signs:
    """Numbers in shared memory by which a job and its workers come to an end."""

    goal: Any
    """The step after which workers end; 0 as long as that is open, -1 for any."""
    arrived: Any
    """A place for each worker, which is 1 when it is there: none writes to another's."""
    may_leave: Any


def work(job: JobOptions, index: int, lane: int, progress: Progress, signs: Signs) -> None:
    """Be a worker: count up in rows of its own and in those of all, on each server.

    Args:
        job: whose.
        index: of this worker.
        lane: which rows are its own: a worker that is started again takes others.
        progress: where it says how far it is.
        signs: when it ends.
    """
    with _logged(job.folder / f"worker-{index}.txt"):
        access = Access(job.token, Claim(index, 0), patience=job.patience)
        clients = [Client([endpoint], access) for endpoint in job.endpoints]
        beat = Heartbeat(job.endpoints, access, lambda server: clients[server].hang_up(0))
        ways = [_Way(job, client, lane, s, progress) for s, client in enumerate(clients)]
        step = 0
        while signs.goal.value not in (step, -1) or not step:
            step += 1
            for way in ways:
                way.step(step)
        signs.arrived[index] = 1
        while not signs.may_leave.value:
            threading.Event().wait(_AGAIN)
        beat.stop()
        for client in clients:
            client.call({"method": "finish"})


class _Way:
    """What one worker does with one server."""

    def __init__(
        self, job: JobOptions, client: Client, lane: int, server: int, progress: Progress
    ) -> None:
        self._job, self._client, self._progress = job, client, progress
        self._lane, self._server = lane, server
        rows, dense = specs(job.mode, job.workers, job.storage)
        self._rows = client.create("sparse", [rows.to_plain()], DIM)
        self._dense = client.create("dense", [dense.to_plain()], 0) if job.dense else None
        self._batch = IdBatch.of(ids_of(lane), 1)
        self._changes = [0]
        self._rounds = job.mode == "sync"
        # Of a round the mean is taken, and rows of our own are nobody else's.
        size = job.workers if self._rounds else 1
        sign = 1 if job.mode == "geo" else -1
        self._gradients = np.full((2 * ROWS + CROWD, DIM), sign * size, np.float32)
        self._numbers = np.full(NUMBERS, sign, np.float32)
        if self._dense is not None:
            self._write(self._dense, np.zeros(NUMBERS, np.float32), flag=Flag.INITIAL)

    def _write(self, table: TableHandle, values: Floats, step: int = 0, flag: int = 0) -> None:
        self._until_taken(lambda: self._client.write(table, [values], step=step, flag=flag))

    def step(self, number: int) -> None:
        """One more in every row and in every number."""
        at, delta = number - 1 if self._rounds else 0, self._job.mode == "geo"
        lane, server, progress = self._lane, self._server, self._progress
        batch = self._batch
        if self._job.storage == "disk":
            batch = IdBatch.of(np.concatenate([ids_of(lane), crowding(number)]), 1)
        progress.sent(lane, server, number)
        self._until_taken(
            lambda: self._client.push(
                self._rows,
                batch,
                self._gradients[: len(batch.ids)],
                step=at,
                delta=delta,
                everywhere=self._rounds,
            )
        )
        progress.acknowledged(lane, server, number)
        if self._dense is not None:
            progress.sent(lane, server, number, dense=True)
            self._write(self._dense, self._numbers, at, Flag.DELTA if delta else Flag.NONE)
            progress.acknowledged(lane, server, number, dense=True)
        self._look(number)

    def _look(self, number: int) -> None:
        """See one's own pushes, except where nobody waits for them."""
        if self._job.mode == "async":
            return
        if self._job.mode == "geo":
            self._client.changed_ids(self._rows, self._changes, reader=1 + self._lane)
        least = number if self._rounds else 0
        found = self._client.pull(self._rows, self._batch, train=False, step=least)
        own = found[self._batch.place[:ROWS]]
        if not (own == number).all():
            raise AssertionError(
                f"rows of worker lane {self._lane} are {own[:, 0].tolist()} on server "
                f"{self._server} after push {number} was acknowledged"
            )

    def _until_taken(self, push: Any) -> None:
        """Push again what a server could not log; it says so, and has applied nothing."""
        while True:
            try:
                push()
            except RuntimeError as error:
                if "File too large" not in str(error):
                    raise
                self._progress.refused(self._lane, self._server)
                threading.Event().wait(_AGAIN)
            else:
                return


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Whatever this process says goes to a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    logging.raiseExceptions = False  # the disk may be full for a while
    logging.basicConfig(level=logging.WARNING)
    try:
        yield
    except BaseException:
        os.write(file, traceback.format_exc().encode())
        raise


def handles() -> tuple[TableHandle, TableHandle]:
    """The tables as every client of a job knows them."""
    return TableHandle("t", (0,), DIM, 0, [0]), TableHandle("d", (1,), 0, 0, [0])


warm_up()

"""Servers with most rows on the disk, killed with -9 while a worker pushes."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.ps.tables.initializers import Constant
from fleetx.ps.tables.rules import SGD
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.channel import Access
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.worker.client import Client
from fleetx.testing.limits import stretched
from tests.ports import free_ports
from tests.programs import behind, python
from tests.ps.team import TOKEN, push, rows, table

SCRIPT = Path(__file__).parent / "scripts" / "spilling.py"
SPEC = SparseSpec(
    name="t",
    dim=64,
    rule=SGD(1.0),
    initializer=Constant(0.0),
    storage="disk",
    memory=1 << 20,  # for 3600 rows
)
IDS, BATCH = 12_000, 1500


class Killed:
    """One server after the other, at one port and in one folder."""

    def __init__(self, folder: Path, log_limit: int) -> None:
        self.port = free_ports(1)[0]
        self._command = [python(), str(SCRIPT), str(self.port), str(folder), str(log_limit)]
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process: Any = None
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, env=self._environment)

    def kill(self) -> None:
        os.kill(behind(self._process.pid), signal.SIGKILL)
        self._process.wait()


class Pusher(threading.Thread):
    """Pushes until it is told to stop, and counts what was acknowledged."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        access = Access(TOKEN, Claim(0, 0), patience=stretched(100))
        self.client = Client([f"127.0.0.1:{port}"], access)
        self.table = table(self.client, SPEC)
        self.counts = np.zeros(IDS, np.float32)
        self.done = 0
        self.told = threading.Condition()
        self.stop = False

    def run(self) -> None:
        draw = np.random.default_rng(0)
        while not self.stop:
            ids = draw.choice(IDS, BATCH, replace=False)
            push(self.client, self.table, ids, np.full((BATCH, SPEC.dim), -1, np.float32))
            self.counts[ids] += 1
            with self.told:
                self.done += 1
                self.told.notify_all()

    def await_pushes(self, count: int) -> None:
        wanted = self.done + count
        with self.told:
            assert self.told.wait_for(lambda: self.done >= wanted, stretched(100)), "it hangs"


@pytest.mark.rare
@pytest.mark.parametrize(
    ("kills", "log_limit"), [(2, 1 << 30), (12, 1 << 22)], ids=["log", "log and saves"]
)
def test_what_was_acknowledged_is_there_once_after_kills(
    kills: int, log_limit: int, tmp_path: Path
) -> None:
    draw = np.random.default_rng(1)
    server = Killed(tmp_path, log_limit)
    try:
        pusher = Pusher(server.port)
        pusher.start()
        pusher.await_pushes(12)  # so many that most rows are on the disk
        for _ in range(kills):
            pusher.await_pushes(int(draw.integers(1, 12)))
            server.kill()
            server.start()
        pusher.await_pushes(3)
        pusher.stop = True
        pusher.join(stretched(100))
        told = pusher.client.call({"method": "describe"})["tables"]["t"]
        found = rows(pusher.client, pusher.table, np.arange(IDS))
        pusher.client.close()
    finally:
        server.kill()
    assert told["rows_in_memory"] < told["rows"] / 2
    np.testing.assert_array_equal(found, np.repeat(pusher.counts[:, None], SPEC.dim, 1))
    assert not [*tmp_path.rglob("cold-*")], "no file of a dead server is left"

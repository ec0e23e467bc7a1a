"""Rows pulled and pushed per second: one parameter server against raw TCP and memory.

    python benchmarks/ps.py --rows 1000000 --workers 1 2
    python benchmarks/ps.py --rows 10000000 --workers 1
    python benchmarks/ps.py --rows 5000000 --stalls save shrink

One server process serves one table of Adagrad rows. Bursts of the kinds that are compared take
turns, so that all of them see the same machine; the figures are medians over bursts, with the best
one in brackets. Per core means per second of processor time of the server process. Rows are read in
the memory of the server, for it is on the same host; "from afar" they are sent, as to a worker on
another host. Pushes are always sent.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.server.server import Server
from fleetx.ps.tables import kernels
from fleetx.ps.tables.hashing import STRIDE
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.rules import Adagrad
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.arrays import Ids
from fleetx.ps.wire.channel import Access
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.worker.client import Client
from fleetx.roles.secrets import CERTIFICATE, KEY, client_tls, server_tls

TOKEN = b"a token for the benchmark"
SPEC = SparseSpec(name="t", dim=16, rule=Adagrad(0.01))
COUNT = 20_000


@dataclass
class Kind:
    """One thing that is measured."""

    name: str
    burst: Callable[[], list[float]]
    process: int
    rates: list[float] = field(default_factory=list)
    per_core: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def run(self, rows: int) -> None:
        """One burst."""
        before, began = cpu(self.process), time.perf_counter()
        latencies = self.burst()
        seconds, used = time.perf_counter() - began, cpu(self.process) - before
        self.latencies += latencies
        self.rates.append(len(latencies) * rows / seconds)
        self.per_core.append(len(latencies) * rows / used)

    def line(self) -> str:
        """A row of the table."""
        p50, p99 = (1e3 * np.percentile(self.latencies, q) for q in (50, 99))
        return (
            f"| {self.name} | {np.median(self.rates) / 1e6:.1f} ({max(self.rates) / 1e6:.1f}) "
            f"| {np.median(self.per_core) / 1e6:.1f} ({max(self.per_core) / 1e6:.1f}) "
            f"| {p50:.2f} | {p99:.2f} |"
        )


def cpu(process: int) -> float:
    """Processor seconds of a process so far, to the nanosecond."""
    tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def ids(count: int) -> Ids:
    """Different 64-bit numbers."""
    return (np.arange(1, count + 1).astype(np.uint64) * np.uint64(STRIDE)).astype(np.int64)


def serve(port: int, rows: int, log: str) -> None:
    """The server process: a table that is full from the start."""
    handler = RequestHandler(Membership(64), folder=Path(log) if log else None)
    handler.call(Claim(0, 0), {"method": "create", "kind": "sparse", "spec": SPEC.to_plain()})
    table = handler._tables[0]._table
    known, out = ids(rows), np.empty((1 << 16, SPEC.dim), np.float32)
    for begin in range(0, rows, 1 << 16):
        piece = known[begin : begin + (1 << 16)]
        table.pull(piece, out[: len(piece)], train=True)  # type: ignore[union-attr]
    server = Server(("127.0.0.1", port), handler, TOKEN, tls=server_tls())
    print("ready", table.nbytes / rows, flush=True)  # type: ignore[union-attr]
    server.run()


def echo(port: int) -> None:
    """The same bytes without a table: ids come, rows go."""
    listener = socket.create_server(("127.0.0.1", port))
    reply, asked = memoryview(bytearray(COUNT * 64)), memoryview(bytearray(COUNT * 8))
    print("ready 0", flush=True)
    while True:
        caller, _ = listener.accept()
        threading.Thread(target=_answer, args=(caller, asked, reply), daemon=True).start()


def _answer(caller: socket.socket, asked: memoryview, reply: memoryview) -> None:
    while caller.recv_into(asked, len(asked), socket.MSG_WAITALL):
        caller.sendall(reply)


def raw(port: int, requests: int) -> Callable[[], list[float]]:
    """Requests to ``echo``, over one connection: a thread that ended would not be counted."""
    asked, reply = bytes(COUNT * 8), memoryview(bytearray(COUNT * 64))
    sock = socket.create_connection(("127.0.0.1", port))

    def request(_: int) -> None:
        sock.sendall(asked)
        sock.recv_into(reply, len(reply), socket.MSG_WAITALL)

    return lambda: timed(request, [*range(requests)])


@dataclass
class Caller:
    """One worker of the benchmark."""

    client: Client
    batches: list[IdBatch]

    def __post_init__(self) -> None:
        self.table = self.client.create("sparse", [SPEC.to_plain()], SPEC.dim)
        self.rows = np.empty((COUNT, SPEC.dim), np.float32)
        self.gradients = np.random.default_rng(0).standard_normal((COUNT, SPEC.dim), np.float32)

    def pull(self) -> list[float]:
        """A burst of pulls."""
        return timed(lambda batch: self.client.pull(self.table, batch, self.rows), self.batches)

    def push(self) -> list[float]:
        """A burst of pushes."""
        return timed(
            lambda batch: self.client.push(self.table, batch, self.gradients), self.batches
        )


def timed(call: Callable[[Any], object], each: list[Any]) -> list[float]:
    """How long a call takes for each of several things."""
    found = []
    for one in each:
        began = time.perf_counter()
        call(one)
        found.append(time.perf_counter() - began)
    return found


def together(calls: list[Callable[[], list[float]]]) -> list[float]:
    """Several workers at once; they wait for sockets most of the time."""
    found: list[float] = []
    threads = [threading.Thread(target=lambda c=c: found.extend(c())) for c in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def gather(rows: int) -> Callable[[], list[float]]:
    """Rows at random places of memory, by one core, as a table has to fetch them."""
    weights = np.ones((rows, SPEC.dim), np.float32)
    chance, out = np.random.default_rng(0), np.empty((COUNT, SPEC.dim), np.float32)
    places = [chance.integers(0, rows, COUNT) for _ in range(20)]

    return lambda: timed(lambda place: kernels.active.gather(weights, place, out), places)


def started(*arguments: str, **variables: str) -> tuple[subprocess.Popen[str], int, float]:
    """A process of this file on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--port", str(port), *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=dict(os.environ) | variables
    )
    assert process.stdout is not None
    words = process.stdout.readline().split()
    assert words[:1] == ["ready"], "the server did not start"
    return process, port, float(words[1])


def measure(rows: int, workers: int, bursts: int, tls: tuple[str, str] | None) -> None:
    """One table of figures."""
    secure = {CERTIFICATE: tls[0], KEY: tls[1]} if tls else {}
    with tempfile.TemporaryDirectory() as folder:
        plain, port, bytes_per_row = started("--serve", str(rows))
        logged, log_port, _ = started("--serve", str(rows), "--log", folder)
        shadow, echo_port, _ = started("--echo")
        processes = [plain, logged, shadow]
        kinds = [
            Kind("raw TCP", raw(echo_port, 30), shadow.pid),
            Kind("memory, one core", gather(rows), os.getpid()),
            *_kinds("", port, plain.pid, rows=rows, workers=workers),
            _kinds(" from afar", port, plain.pid, rows=rows, workers=workers, shared_memory=False)[
                0
            ],
            _kinds(" with a log", log_port, logged.pid, rows=rows, workers=workers)[1],
        ]
        if secure:
            sealed, tls_port, _ = started("--serve", str(rows), **secure)
            processes.append(sealed)
            kinds += _kinds(
                " over TLS",
                tls_port,
                sealed.pid,
                rows=rows,
                workers=workers,
                tls=client_tls(secure),
            )
        try:
            for turn in range(1 + bursts):
                # To and fro: each kind finds in the caches what the one before it left there.
                for kind in kinds[:: -1 if turn % 2 else 1]:
                    kind.run(COUNT)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    payload = 4 * (SPEC.dim + SPEC.rule.state_width(SPEC.dim))
    print(
        f"\n{rows:,} rows, {workers} workers, {kernels.active.__name__.rsplit('_', 1)[1]};", end=" "
    )
    print(f"{bytes_per_row:.0f} bytes a row, {bytes_per_row / payload:.2f} times its payload\n")
    print("| | million rows/s (best) | per server core (best) | p50 ms | p99 ms |")
    print("|---|---|---|---|---|")
    for kind in kinds:
        print(kind.line())


def stalls(rows: int, event: str) -> None:
    """How long pushes take while a table is saved or a day ends, against pushes before it."""
    with tempfile.TemporaryDirectory() as folder:
        process, port, _ = started("--serve", str(rows))
        try:
            access = Access(TOKEN, Claim(0, 0))
            caller = _caller(port, rows, access)
            caller.push()
            before = [late for _ in range(10) for late in caller.push()]
            saver = Client([f"127.0.0.1:{port}"], access)
            message: dict[str, Any] = {"method": "save", "folder": folder, "delta": False}
            if event == "shrink":  # all rows go but those that are pushed meanwhile
                message = {"method": "shrink", "threshold": 1}
                saver.call(message)
            thread = threading.Thread(target=lambda: saver.call(message))
            began = time.perf_counter()
            thread.start()
            during = []
            while thread.is_alive():
                during += caller.push()
            seconds = time.perf_counter() - began
        finally:
            process.kill()
            process.wait()
    for name, found in (("before", before), ("during", during)):
        p50, p99, most = (1e3 * np.percentile(found, q) for q in (50, 99, 100))
        print(f"pushes {name} a {event}: p50 {p50:.1f}, p99 {p99:.1f}, longest {most:.1f} ms")
    print(f"{event} of {rows:,} rows took {seconds:.1f} s beside {len(during)} pushes")


def _caller(port: int, rows: int, access: Access) -> "Caller":
    chance, known = np.random.default_rng(1), ids(rows)
    places = [chance.choice(rows, COUNT, replace=False) for _ in range(15)]
    batches = [IdBatch.of(known[place], 1) for place in places]
    return Caller(Client([f"127.0.0.1:{port}"], access), batches)


def _kinds(
    label: str, port: int, process: int, *, rows: int, workers: int, **access: Any
) -> list[Kind]:
    callers = [_caller(port, rows, Access(TOKEN, Claim(i, 0), **access)) for i in range(workers)]
    return [
        Kind(f"pull{label}", lambda: together([c.pull for c in callers]), process),
        Kind(f"push{label}", lambda: together([c.push for c in callers]), process),
    ]


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--bursts", type=int, default=8)
    parser.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"))
    parser.add_argument(
        "--stalls", nargs="+", choices=["save", "shrink"], help="pushes beside these instead"
    )
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--echo", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--log", default="", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.port, given.serve, given.log)
    elif given.echo:
        echo(given.port)
    elif given.stalls:
        for rows in given.rows:
            for event in given.stalls:
                stalls(rows, event)
    else:
        for rows in given.rows:
            for workers in given.workers:
                measure(rows, workers, given.bursts, given.tls)


if __name__ == "__main__":
    main()

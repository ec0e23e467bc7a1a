"""What a batch costs a parameter server, without sockets: processor time, and calls of Python.

    python benchmarks/ps_requests.py
    python benchmarks/ps_requests.py --servers 4 --profile
    python benchmarks/ps_requests.py --beside ../before --rounds 20

A batch is that of ``ps_scaling.py``: rows of two tables in one message, then their gradients,
gradients of the network and its fresh parameters in another; it is answered by the loop that
answers small requests of all connections, with a log, and what would be sent is thrown away.
``--beside`` runs another copy of the sources in turn with this one, a process for each stretch.
"""

import argparse
import cProfile
import os
import pstats
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.server.server import _RequestLoop
from fleetx.ps.server.shared_thread import Served
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.initializers import Uniform
from fleetx.ps.tables.rules import Adam
from fleetx.ps.tables.sparse_spec import Pace, SparseSpec
from fleetx.ps.wire.frames import Flag, Frame, Op
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.wire.plain_data import to_plain

BATCH, SLOTS, BATCHES, NUMBERS = 512, 26, 40, 18_433
SEQ = 12
"""Where the number of a change is in its header."""
DIMS = {"wide": 1, "deep": 8}


class Fed:
    """Stands for a connection: gives bytes that lie ready, and takes what is sent."""

    secure = False

    def __init__(self) -> None:
        self.coming = b""

    def read_some(self, view: memoryview, *, idle: bool = False, wait: bool = True) -> int:
        """All that lies ready."""
        size = min(len(view), len(self.coming))
        view[:size] = self.coming[:size]
        self.coming = self.coming[size:]
        return size

    def send_some(self, views: list[memoryview]) -> None:
        """Throw it away."""
        views.clear()


def share(ids: Any, servers: int) -> Any:
    """The ids of a batch that belong to the first server, each once."""
    batch = IdBatch.of(ids.reshape(-1), servers)
    begin, end = next(pairwise(batch.begins.tolist()))
    return batch.ids[begin:end]


class Batch:
    """The two messages of a batch to one server."""

    def __init__(self, ids: Any, numbers: int, random: Any) -> None:
        n, parts, self._places = len(ids), [], list[int]()
        pulls = [Frame(Op.PULL, at, Flag.TRAIN, count=n, body=8 * n) for at in range(len(DIMS))]
        self.rows = b"".join(frame.packed() + ids.tobytes() for frame in pulls)
        for at, dim in enumerate(DIMS.values()):
            values = (0.01 * random.standard_normal((n, dim))).astype(np.float32)
            size = 8 * n + values.nbytes
            frame = Frame(Op.PUSH, at, Flag.UNIQUE, count=n, width=dim, rate=0.001, body=size)
            parts += [frame.packed(), ids.tobytes(), values.tobytes()]
        dense = (0.01 * random.standard_normal(numbers)).astype(np.float32)
        write = Frame(Op.WRITE, len(DIMS), count=numbers, rate=0.001, body=dense.nbytes)
        parts += [write.packed(), dense.tobytes(), Frame(Op.READ, len(DIMS)).packed()]
        self._changes = bytearray(b"".join(parts))
        at = 0
        for frame in (*parts[:1], *parts[3:4], *parts[6:7]):
            self._places.append(bytes(self._changes).index(frame, at) + SEQ)
            at = self._places[-1]

    def changes(self, seq: int) -> bytes:
        """Gradients with numbers from this one on: those that are not new would be left out."""
        for more, place in enumerate(self._places):
            struct.pack_into("<Q", self._changes, place, seq + more)
        return bytes(self._changes)


def answered(loop: Any, pipe: Fed, data: bytes) -> None:
    """Let the loop of small requests answer what has come."""
    pipe.coming = data
    while pipe.coming:
        loop.receive()
        while loop.serve_next() is Served.MORE:
            pass


def made(folder: Path, numbers: int) -> tuple[Any, Fed]:
    """A server with the tables of a wide and deep model, and its end of a connection."""
    membership = Membership(1, silence=1e6, grace=1e6)
    handler = RequestHandler(membership, folder=folder, patience=60)
    claim = Claim(0, 1)
    for name, dim in DIMS.items():
        spec = SparseSpec(name=name, dim=dim, rule=Adam(0.001), initializer=Uniform(-0.05, 0.05))
        handler.call(claim, {"method": "create", "kind": "sparse", "spec": spec.to_plain()})
    blocks = [["network", 0, numbers]]
    options = {"lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
    pace = to_plain(Pace())
    plain = {"name": "dense-0", "blocks": blocks, "optimizer": "Adam", "options": options}
    handler.call(claim, {"method": "create", "kind": "dense", "spec": plain | {"pace": pace}})
    pipe: Any = Fed()
    return _RequestLoop(handler, pipe, claim), pipe


def batches(servers: int) -> list[Batch]:
    """Those that a run goes through, again and again."""
    random = np.random.default_rng(0)
    places = random.zipf(1.2, (BATCHES, BATCH, SLOTS)) % 20_000
    each = places * SLOTS + np.arange(SLOTS)
    return [Batch(share(ids, servers), NUMBERS // servers, random) for ids in each]


def turned(loop: Any, pipe: Fed, held: list[Batch], rounds: int, seq: int = 1) -> list[float]:
    """Milliseconds of processor time of a batch, in each round through all of them."""
    found = []
    for _ in range(rounds):
        messages = []
        for batch in held:
            messages += [batch.rows, batch.changes(seq)]
            seq += 3
        begin = time.process_time()
        for message in messages:
            answered(loop, pipe, message)
        found.append(1000 * (time.process_time() - begin) / len(held))
    return found


def take_turns(servers: int) -> None:
    """Go through all batches for each line that is read, and write how long a batch took."""
    held, seq = batches(servers), 1
    with tempfile.TemporaryDirectory() as folder:
        loop, pipe = made(Path(folder), NUMBERS // servers)
        for _ in sys.stdin:
            (found,) = turned(loop, pipe, held, 1, seq)
            seq += 3 * len(held)
            print(found, flush=True)


def profiled(servers: int) -> None:
    """Print who takes how long, and how many calls a batch makes."""
    held = batches(servers)
    with tempfile.TemporaryDirectory() as folder:
        loop, pipe = made(Path(folder), NUMBERS // servers)
        turned(loop, pipe, held, 3)
        profile = cProfile.Profile(time.thread_time)
        profile.enable()
        turned(loop, pipe, held, 5, 1_000_000)
        profile.disable()
    stats = pstats.Stats(profile)
    calls = getattr(stats, "total_calls") / (5 * len(held))  # noqa: B009 (stubs lack it)
    print(f"{calls:.0f} calls a batch")
    stats.sort_stats("tottime").print_stats(45)


def in_turn(sources: list[Path], servers: int, rounds: int) -> None:
    """Print the times of each copy of the sources, and how pairs of turns compare."""
    command = [sys.executable, __file__, "--turns", "--servers", str(servers)]
    sides = [
        subprocess.Popen(
            command,
            env=os.environ | {"PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for source in sources
    ]
    found: list[list[float]] = [[] for _ in sides]
    for number in range(-3, rounds):
        for side, times in zip(sides, found, strict=True):
            assert side.stdin is not None
            assert side.stdout is not None
            side.stdin.write("turn\n")
            side.stdin.flush()
            said = float(side.stdout.readline())
            if number >= 0:
                times.append(said)
    for source, side, times in zip(sources, sides, found, strict=True):
        side.communicate()
        best, usual = min(times), statistics.median(times)
        print(f"{source}: {best:.3f} ms a batch at best, {usual:.3f} usually")
    if len(found) > 1:
        ratio = statistics.median(here / there for there, here in zip(*found, strict=True))
        print(f"a turn here takes {ratio:.3f} of the one before it there")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--turns", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.turns:
        take_turns(given.servers)
    elif given.profile:
        profiled(given.servers)
    else:
        beside = [given.beside] if given.beside else []
        in_turn([*beside, Path(__file__).parent.parent], given.servers, given.rounds)


if __name__ == "__main__":
    main()

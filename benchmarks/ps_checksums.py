"""What checksums of its log cost a parameter server: processor time of a push with and without.

Both sides take turns in one process, and the best of each counts. Without is not a mode that
servers have: the checksum is replaced by a number here.
"""

import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np

from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.tables import checksums
from fleetx.ps.tables.rules import Adagrad
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.frames import Flag, Frame, Op
from fleetx.ps.wire.handshake import Claim

ME = Claim(0, 1)
TURNS = 30


def no_checksum(*parts: bytes | memoryview, seed: int = 0) -> int:
    """Stands for one, and costs nothing."""
    return seed


def main() -> None:
    """Measure pushes of several sizes."""
    for rows, dim in ((300, 8), (20_000, 16), (20_000, 64)):
        with tempfile.TemporaryDirectory() as folder:
            report(Path(folder), rows, dim)


def report(folder: Path, rows: int, dim: int) -> None:
    """Print what one size costs."""
    handler = RequestHandler(Membership(1), folder=folder)
    spec = SparseSpec(name="t", dim=dim, rule=Adagrad(0.1)).to_plain()
    handler.call(ME, {"method": "create", "kind": "sparse", "spec": spec})
    chance = np.random.default_rng(0)
    ids = chance.choice(1 << 20, rows, replace=False)
    body = memoryview(ids.tobytes() + chance.standard_normal((rows, dim), np.float32).tobytes())
    pushed = 0

    def pushes(count: int) -> float:
        nonlocal pushed
        begun = time.process_time()
        for _ in range(count):
            pushed += 1
            frame = Frame(Op.PUSH, 0, Flag.UNIQUE, pushed, rows, dim, 0, -1.0, len(body))
            handler.sparse(frame).change(ME, frame, body)
        return (time.process_time() - begun) / count

    count = max(10, 100_000 // rows)
    pushes(count)
    with_them, without = [], []
    for _ in range(TURNS):
        with_them.append(pushes(count))
        with mock.patch.object(checksums, "of_parts", new=no_checksum):
            without.append(pushes(count))
    begun = time.perf_counter()
    for _ in range(count):
        checksums.of_parts(body)
    speed = count * len(body) / (time.perf_counter() - begun) / 1e9
    print(
        f"{rows:,} rows of {dim}: {1e6 * min(with_them):.0f} µs with checksums, "
        f"{1e6 * min(without):.0f} without ({min(with_them) / min(without):.2f}); "
        f"checksums alone {speed:.0f} GB/s"
    )


if __name__ == "__main__":
    main()

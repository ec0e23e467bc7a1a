"""Tables larger than memory against the same table in memory: rows pulled and pushed per second.

    python benchmarks/ps_disk.py --rows 2000000
    python benchmarks/ps_disk.py --rows 50000000 --batches 400 --lines 3   # 10 GB, and 9 of disk

Both tables hold the same rows, of Adagrad; one has memory for a share of them. Batches of ids come
by chance, by Zipf's law (the n-th id as often as 1/n says) or all alike, each id of a batch once,
as workers ask for them; a batch is pulled and its gradients are pushed. Batches of both tables take
turns. Figures are rows per second of processor time, and a ratio by the clock, which also counts
the disk (and whatever else runs): how much of the file the system keeps in memory besides is its
own choice, so the clock tells of a disk only where the file is larger than what is free. ``met`` is
the share of rows that were in memory.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed
from benchmarks.ps import ids
from fleetx.ps.tables.disk_table import DiskTable
from fleetx.ps.tables.index import fullness_for
from fleetx.ps.tables.rules import Adagrad
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.tables.sparse_table import SparseTable

COUNT = 20_000
"""Ids that are drawn for a batch."""


@dataclass
class Side:
    """One of the two tables, and what it took."""

    table: SparseTable
    rows: int = 0
    processor: float = 0.0
    clock: float = 0.0

    def train(self, batch: Any) -> None:
        """One batch."""
        out = np.empty((len(batch), self.table.spec.dim), np.float32)
        before, began = time.process_time(), time.perf_counter()
        self.table.pull(batch, out, train=True)
        self.table.push(batch, out, 0.01, unique=True)
        self.processor += time.process_time() - before
        self.clock += time.perf_counter() - began
        self.rows += len(batch)


def made(rows: int, dim: int, share: float, folder: Path | None) -> tuple[SparseTable, DiskTable]:
    """Both tables, full of rows."""
    rule = Adagrad(0.01)
    row = 4 * (dim + rule.state_width(dim))
    memory = int(share * rows * (row + fullness_for(row).most_bytes + 1))
    common: dict[str, Any] = {"name": "t", "dim": dim, "rule": rule}
    table = SparseTable(SparseSpec(**common))
    disk = DiskTable(SparseSpec(**common, storage="disk", memory=memory), folder=folder)
    known, out = ids(rows), np.empty((1 << 16, dim), np.float32)
    began = time.process_time()
    for begin in range(0, rows, 1 << 16):
        piece = known[begin : begin + (1 << 16)]
        table.pull(piece, out[: len(piece)], train=True)
    print(f"{rows:,} rows made in memory in {time.process_time() - began:.1f} s")
    began, bits = time.process_time(), (rows >> 16).bit_length()
    for number in range(1 << bits):
        disk.put(table.part(number, bits))
    print(f"and put on the disk, as a save is loaded, in {time.process_time() - began:.1f} s")
    return table, disk


def drawn(kind: str, known: Any, draw: np.random.Generator) -> Any:
    """The ids of a batch, each once."""
    if kind == "zipf":
        place = np.exp(draw.random(COUNT) * np.log(len(known))).astype(np.int64) - 1
    else:
        place = draw.integers(0, len(known), COUNT)
    return known[np.unique(place)]


def measured(batches: list[Any], memory: SparseTable, disk: DiskTable) -> str:
    """Both tables by turns: rates, ratios, and the share of rows that were met in memory."""
    sides, met = [Side(memory), Side(disk)], 0
    for turn, batch in enumerate(batches):
        met += int((disk._index.find(batch)[0] >= 0).sum())
        for side in sides[:: 1 if turn % 2 else -1]:
            side.train(batch)
    fast, slow = (side.rows / side.processor for side in sides)
    clock = sides[0].clock / sides[1].clock
    rates = f"{fast / 1e6:.2f} M | {slow / 1e6:.2f} M | {slow / fast:.2f} | {clock:.2f}"
    return f"{rates} | {met / sides[0].rows:.2f}"


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--share", type=float, default=0.1, help="of the rows that memory is for")
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--lines", type=int, default=1, help="for each kind, while memory fills")
    parser.add_argument("--kinds", nargs="+", default=["zipf", "uniform"])
    parser.add_argument("--folder", type=Path, help="on the disk to use; else that of the system")
    given = parser.parse_args()
    memory, disk = made(given.rows, given.dim, given.share, given.folder)
    known = np.random.default_rng(0).permutation(ids(given.rows))
    print(f"\n{given.rows:,} rows of width {given.dim}, memory for {given.share:.0%} of them\n")
    print("| ids | batches before | rows/s of a core, memory | disk | ratio | by the clock | met |")
    print("|---|---|---|---|---|---|---|")
    for kind in given.kinds:
        draw = np.random.default_rng(1)
        for line in range(given.lines + 1):
            before = given.batches // 2 + (line - 1) * given.batches
            # Until memory holds what it will, batches are not counted.
            count = given.batches if line else given.batches // 2
            found = measured([drawn(kind, known, draw) for _ in range(count)], memory, disk)
            if line:
                print(f"| {kind} | {before:,} | {found} |", flush=True)
    print(f"\n{disk.describe()}")


if __name__ == "__main__":
    main()

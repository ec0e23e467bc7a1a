"""Tables without a server: making rows against pulling them, Adam against Adagrad, and bytes.

    python benchmarks/ps_tables.py

In processor time of one core, in batches of 20,000 ids. Rows are made by pulling ids that are new,
then rows are pulled at random; pushes of both rules take turns, and the ratio is that of medians.
Bytes are the most that a row of width 8 with Adagrad's state took while a table grew, with its
share of the index, over its payload of 64.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))  # benchmarks are not installed
from benchmarks.ps import ids
from fleetx.ps.tables.rules import Adagrad, Adam, Rule
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.tables.sparse_table import SparseTable

COUNT = 20_000
SIZES = {1: 600_000, 8: 600_000, 16: 600_000, 64: 200_000, 256: 60_000}
"""Width -> rows."""


def made(dim: int, rule: Rule) -> SparseTable:
    """An empty table."""
    return SparseTable(SparseSpec(name="t", dim=dim, rule=rule))


def used(work: Callable[[], object]) -> float:
    """Processor seconds."""
    before = time.process_time()
    work()
    return time.process_time() - before


def pull(table: SparseTable, batches: list[Any], out: Any) -> None:
    """Make rows, or find them."""
    for batch in batches:
        table.pull(batch, out[: len(batch)], train=True)


def push(table: SparseTable, batches: list[Any], gradients: Any) -> None:
    """Move rows."""
    for batch in batches:
        table.push(batch, gradients[: len(batch)], 0.01, unique=True)


def batches(rows: int, number: int, seed: int) -> list[Any]:
    """Random ids, each once in a batch."""
    draw, known = np.random.default_rng(seed), ids(rows)
    return [np.unique(known[draw.integers(0, rows, COUNT)]) for _ in range(number)]


def making(dim: int, rows: int) -> tuple[float, float]:
    """Rows per second: made, and pulled."""
    new, asked = np.array_split(ids(rows), rows // COUNT), batches(rows, 20, 0)
    out = np.empty((COUNT, dim), np.float32)
    rates = []
    for _ in range(3):
        table = made(dim, Adagrad())
        spent = used(lambda: pull(table, new, out))  # noqa: B023
        pull(table, asked, out)
        found = used(lambda: pull(table, asked, out))  # noqa: B023
        rates.append((rows / spent, sum(map(len, asked)) / found))
    return statistics.median(r[0] for r in rates), statistics.median(r[1] for r in rates)


def rules(dim: int, rows: int) -> tuple[float, float]:
    """Nanoseconds of a row pushed: by Adagrad, and by Adam."""
    out = np.random.default_rng(0).standard_normal((COUNT, dim), np.float32)
    tables, asked = [made(dim, rule) for rule in (Adagrad(), Adam())], batches(rows, 10, 0)
    for table in tables:
        pull(table, np.array_split(ids(rows), rows // COUNT), out.copy())
    spent: list[list[float]] = [[], []]
    for turn in range(10):
        for which in (0, 1) if turn % 2 else (1, 0):
            spent[which].append(used(lambda w=which: push(tables[w], asked, out)))  # type: ignore[misc]
    count = sum(map(len, asked))
    adagrad, adam = (1e9 * statistics.median(each[2:]) / count for each in spent)
    return adagrad, adam


def most_bytes(rows: int) -> float:
    """The most of a row while a table grows, over its payload."""
    table, most, out = made(8, Adagrad()), 0.0, np.empty((COUNT, 8), np.float32)
    for batch in np.array_split(ids(rows), rows // COUNT):
        table.pull(batch, out[: len(batch)], train=True)
        if len(table) > rows // 4:
            most = max(most, table.nbytes / len(table) / 64)
    return most


def main() -> None:
    """Measure all of it."""
    making(8, 2 * COUNT)  # kernels are loaded
    print("| width | rows made/s | rows pulled/s | ratio | Adagrad ns | Adam ns | ratio |")
    print("|---|---|---|---|---|---|---|")
    for dim, rows in SIZES.items():
        (new, old), (adagrad, adam) = making(dim, rows), rules(dim, rows)
        print(
            f"| {dim} | {new / 1e6:.2f} M | {old / 1e6:.2f} M | {new / old:.2f} "
            f"| {adagrad:.0f} | {adam:.0f} | {adam / adagrad:.2f} |"
        )
    print(f"\nbytes of a row of width 8 over its payload: at most {most_bytes(1_000_000):.2f}")


if __name__ == "__main__":
    main()

"""Examples per second and AUC of wide and deep, end to end, against one process and Paddle.

    python benchmarks/ctr.py --workers 1 2 4
    pip install --target /somewhere paddlepaddle==2.6.2 protobuf==3.20.3 'numpy<2'
    python benchmarks/ctr.py --workers 1 2 4 --modes async --paddle /somewhere

Every job has two servers on this machine. The worker's loop is that of ``examples/ctr``, with
batches that lie in memory and come once. The rule is Adam at one rate on all sides, for rows and
for the network: Paddle 2.6.2 moves rows by Adam whatever its optimizer is called, SGD included. The
local process trains the same model with ``torch.nn.Embedding(sparse=True)`` and ``SparseAdam``.
It counts updates of a table, and not of each row, for the correction of the first ones, which makes
those of rare rows three times as large. Jobs take turns for several rounds, asynchronous and
synchronous ones with rows that are fetched one batch ahead and without.

AUC is that of the second half of the batches, each scored before it is trained, after as many
examples on all sides.

The clock also counts what else runs on the machine. Processor time does not: that of a batch, on
workers and servers together, says how many examples the cores could train if nobody else had them.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import fleetx as fleet

sys.path.insert(0, str(Path(__file__).parent.parent))  # examples and benchmarks are not installed
from benchmarks import unlaunched
from benchmarks.auc import auc
from benchmarks.unlaunched import seconds

WARM = 20
"""Batches before the clock begins."""
RATE = 0.01
MODES = ("sync", "async", "geo")
FORMS = ("slotted", "whole")
"""How Paddle's network is written."""


Batches = list[tuple[Tensor, Tensor, Tensor]]


def batches(count: int, size: int, seed: int, device: torch.device) -> Batches:
    """Batches of clicks, on the device, as data sets give them."""
    from examples.ctr.clicks import labelled

    dense, ids, clicks = labelled(count * size, seed)
    numbers = (torch.from_numpy(each).float() for each in (clicks, dense))
    whole = (*numbers, torch.from_numpy(ids))
    there = (tensor.to(device) for tensor in whole)
    return list(zip(*(tensor.split(size) for tensor in there), strict=True))


class Local(nn.Module):
    """The same model with ordinary embeddings, over ids that are numbered for it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.network = model.network
        self.wide = nn.EmbeddingBag(130_000, 1, mode="sum", sparse=True)
        self.deep = nn.Embedding(130_000, 8, sparse=True)
        nn.init.zeros_(self.wide.weight)
        nn.init.uniform_(self.deep.weight, -0.05, 0.05)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """The logit of a click."""
        ids = ids // 1000 * 26 + ids % 1000
        logit: Tensor = self.network(torch.cat([dense, self.deep(ids).flatten(1)], 1))
        return (logit + self.wide(ids)).squeeze(-1)


class Rate(NamedTuple):
    """What a job reached."""

    clock: float
    """Examples per second."""
    work: float
    """Milliseconds of processor time for a batch, on all its processes."""
    auc: float


def local(steps: int, size: int) -> Rate:
    """What one process reaches."""
    from examples.ctr.model import WideAndDeep

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Local(WideAndDeep()).to(device)
    rows = [*model.wide.parameters(), *model.deep.parameters()]
    rules: list[torch.optim.Optimizer] = [
        torch.optim.Adam(model.network.parameters(), lr=RATE),
        torch.optim.SparseAdam(rows, lr=RATE),
    ]
    data, scores = batches(WARM + steps, size, 0, device), Scores()

    def step(number: int) -> None:
        clicks, dense, ids = data[number]
        logits = model(dense, ids)
        scores.keep(logits, clicks)
        binary_cross_entropy_with_logits(logits, clicks).backward()
        for rule in rules:
            rule.step()
            rule.zero_grad()

    rate, work = timed(step, steps, time.process_time)
    return Rate(rate * size, work, scores.auc())


class Scores:
    """What was thought of examples before they were trained."""

    def __init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor]] = []

    def keep(self, logits: Tensor, clicks: Tensor) -> None:
        """Those of one batch."""
        self._kept.append((logits.detach(), clicks))

    def auc(self) -> float:
        """Of the second half of the batches."""
        late = self._kept[len(self._kept) // 2 :]
        logits, clicks = (torch.cat(each).cpu().numpy() for each in zip(*late, strict=True))
        return auc(logits, clicks > 0)


def timed(
    step: Callable[[int], None], steps: int, spent: Callable[[], float]
) -> tuple[float, float]:
    """Steps per second and milliseconds of processor time a step, after some to begin with."""
    for number in range(WARM):
        step(number)
    _drain()
    worked, began = spent(), time.perf_counter()
    for number in range(WARM, WARM + steps):
        step(number)
    _drain()
    return steps / (time.perf_counter() - began), (spent() - worked) / steps * 1e3


def _drain() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def work(mode: str, steps: int, size: int, folder: Path, *, prefetch: bool) -> None:
    """A process of a job; workers print what they reached."""
    from examples.ctr.model import WideAndDeep

    strategy = fleet.DistributedStrategy()
    strategy.a_sync = mode != "sync"
    if strategy.a_sync:
        strategy.a_sync_configs = {"k_steps": 10 if mode == "geo" else 0}
    fleet.init(strategy=strategy)
    if fleet.is_server():
        fleet.init_server()
        (folder / f"server.{os.getpid()}").touch()
        fleet.run_server()
        return
    model = fleet.distributed_model(WideAndDeep())
    optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=RATE))
    fleet.init_worker()
    data = batches(WARM + steps, size, fleet.worker_index(), fleet.device())
    scores = Scores()

    def ahead(number: int) -> None:
        if prefetch and number < len(data):
            model.prefetch(data[number][2])

    ahead(0)

    def step(number: int) -> None:
        clicks, dense, ids = data[number]
        logits = model(dense, ids)
        scores.keep(logits, clicks)
        loss = binary_cross_entropy_with_logits(logits, clicks)
        ahead(number + 1)
        optimizer.minimize(loss)

    # Servers work for all workers alike; one of these counts what the servers spend.
    counted = list(folder.glob("server.*")) if fleet.is_first_worker() else []
    servers = [int(path.suffix[1:]) for path in counted]

    def spent() -> float:
        return time.process_time() + sum(map(seconds, servers))

    rate, used = timed(step, steps, spent)
    fleet.stop_worker()
    print(f"RATE {rate * size} {used} {scores.auc()}", flush=True)


def job(
    mode: str, workers: int, steps: int, size: int, folder: Path, *, prefetch: bool = False
) -> Rate:
    """What all workers of a job reach."""
    command = [sys.executable, "-m", "fleetx.launch", "--server_num=2", f"--worker_num={workers}"]
    command += [f"--log_dir={folder}", __file__, "--work", mode, "--folder", str(folder)]
    command += ["--steps", str(steps), "--batch_size", str(size)]
    command += ["--prefetch"] if prefetch else []
    subprocess.run(command, check=True, capture_output=True)
    return said(folder, workers)


def paddle_job(mode: str, form: str, workers: int, given: argparse.Namespace) -> Rate:
    """What all workers of a job in Paddle reach."""
    with tempfile.TemporaryDirectory() as name:
        script = str(Path(__file__).with_name("ctr_paddle.py"))
        command = [script, mode, form, str(given.steps), str(given.batch_size), name]
        paths = {"PYTHONPATH": given.paddle}
        unlaunched.run(command, Path(name), servers=2, workers=workers, environment=paths)
        return said(Path(name) / "log", workers)


def said(logs: Path, workers: int) -> Rate:
    """What the workers of a job have printed, together."""
    clock, work, learned = 0.0, 0.0, 0.0
    for index in range(workers):
        text = (logs / f"workerlog.{index}").read_text()
        found = [line for line in text.splitlines() if line.startswith("RATE")]
        if not found:
            raise SystemExit(f"worker {index} failed:\n{text[-2000:]}")
        _, rate, used, reached = found[0].split()
        clock, work, learned = clock + float(rate), work + float(used), learned + float(reached)
    return Rate(clock, work / workers, learned / workers)


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paddle", default="", help="a folder in which Paddle is installed")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--prefetch", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        steps, size = given.steps, given.batch_size
        work(given.work, steps, size, Path(given.folder), prefetch=given.prefetch)
        return
    found: dict[str, list[Rate]] = {}

    def note(name: str, rate: Rate) -> None:
        found.setdefault(name, []).append(rate)
        told = f"{name}: {rate.clock:,.0f}, {rate.work:.2f} ms, AUC {rate.auc:.4f}"
        print(told, file=sys.stderr, flush=True)

    for _ in range(given.rounds):
        note("one process", local(given.steps, given.batch_size))
        for mode, workers, prefetch in itertools.product(given.modes, given.workers, (True, False)):
            if mode == "geo" and prefetch:
                continue  # its rows are with the workers already
            size, steps = given.batch_size, given.steps
            with tempfile.TemporaryDirectory() as folder:
                rate = job(mode, workers, steps, size, Path(folder), prefetch=prefetch)
            note(f"{mode}{', prefetch' if prefetch else ''}, {workers} workers", rate)
        theirs = [mode for mode in given.modes if mode != "sync"] if given.paddle else []
        for mode, form, workers in itertools.product(theirs, FORMS, given.workers):
            rate = paddle_job(mode, form, workers, given)
            note(f"Paddle, {form}, {mode}, {workers} workers", rate)
    report(found, given.batch_size)


def report(found: dict[str, list[Rate]], size: int) -> None:
    """Print a table, and all that was measured."""
    base = statistics.median(rate.clock for rate in found["one process"])
    cores = os.cpu_count() or 1
    print(f"| | examples/s | against one process | ms a batch | {cores} cores could do | AUC |")
    print("|---|---|---|---|---|---|")
    for name, rates in found.items():
        middle = statistics.median(rate.clock for rate in rates)
        used = statistics.median(rate.work for rate in rates)
        could = cores * size / used * 1e3
        learned = statistics.median(rate.auc for rate in rates)
        told = f"{middle:,.0f} | {middle / base:.2f} | {used:.2f} | {could:,.0f} | {learned:.4f}"
        print(f"| {name} | {told} |")
    print(json.dumps(found))


if __name__ == "__main__":
    main()

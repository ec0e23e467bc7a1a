"""Examples per second of wide and deep, end to end, against one process without servers.

    python benchmarks/ctr.py --workers 1 2 4
    pip install --target /somewhere paddlepaddle==2.6.2 protobuf==3.20.3 'numpy<2'
    python benchmarks/ctr.py --workers 2 --modes async geo --paddle /somewhere

Every job has two servers on this machine. The worker's loop is that of ``examples/ctr``, with
batches that lie in memory, rows fetched one batch ahead, and Adagrad everywhere; the local process
trains the same model with ``torch.nn.Embedding(sparse=True)``. Jobs take turns for several rounds.

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
from benchmarks.unlaunched import seconds

BATCHES = 20
MODES = ("sync", "async", "geo")
FORMS = ("slotted", "whole")
"""How Paddle's network is written."""


def batches(size: int, seed: int, device: torch.device) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Batches of clicks, on the device, as data sets give them."""
    from examples.ctr.clicks import examples

    dense, ids, truth = examples(BATCHES * size, seed)
    clicks = (torch.rand(len(truth)) < torch.from_numpy(truth)).float()
    whole = (clicks, torch.from_numpy(dense).float(), torch.from_numpy(ids))
    there = (tensor.to(device) for tensor in whole)
    return list(zip(*(tensor.split(size) for tensor in there), strict=True))


class Local(nn.Module):
    """The same model with ordinary embeddings, over ids that are numbered for it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.network = model.network
        self.wide = nn.EmbeddingBag(130_000, 1, mode="sum", sparse=True)
        self.deep = nn.Embedding(130_000, 8, sparse=True)

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


def local(steps: int, size: int) -> Rate:
    """What one process reaches."""
    from examples.ctr.model import WideAndDeep

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Local(WideAndDeep()).to(device)
    rows = [*model.wide.parameters(), *model.deep.parameters()]
    rules = [torch.optim.Adagrad(p, lr=0.05) for p in (model.network.parameters(), rows)]
    data = batches(size, 0, device)

    def step(number: int) -> None:
        clicks, dense, ids = data[number % len(data)]
        binary_cross_entropy_with_logits(model(dense, ids), clicks).backward()
        for rule in rules:
            rule.step()
            rule.zero_grad()

    rate, work = timed(step, steps, time.process_time)
    return Rate(rate * size, work)


def timed(
    step: Callable[[int], None], steps: int, spent: Callable[[], float]
) -> tuple[float, float]:
    """Steps per second and milliseconds of processor time a step, after each batch came once."""
    for number in range(BATCHES):
        step(number)
    _drain()
    worked, began = spent(), time.perf_counter()
    for number in range(steps):
        step(number)
    _drain()
    return steps / (time.perf_counter() - began), (spent() - worked) / steps * 1e3


def _drain() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def work(mode: str, steps: int, size: int, folder: Path) -> None:
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
    optimizer = fleet.distributed_optimizer(torch.optim.Adagrad(model.parameters(), lr=0.05))
    fleet.init_worker()
    data = batches(size, fleet.worker_index(), fleet.device())

    def ahead(number: int) -> None:
        if mode != "geo":  # whose rows are here already
            model.prefetch(data[number % len(data)][2])

    numbers = itertools.count()
    ahead(0)

    def step(_: int) -> None:
        number = next(numbers)
        clicks, dense, ids = data[number % len(data)]
        loss = binary_cross_entropy_with_logits(model(dense, ids), clicks)
        ahead(number + 1)
        optimizer.minimize(loss)

    # Servers work for all workers alike; one of these counts what the servers spend.
    counted = list(folder.glob("server.*")) if fleet.is_first_worker() else []
    servers = [int(path.suffix[1:]) for path in counted]

    def spent() -> float:
        return time.process_time() + sum(map(seconds, servers))

    rate, used = timed(step, steps, spent)
    fleet.stop_worker()
    print(f"RATE {rate * size} {used}", flush=True)


def job(mode: str, workers: int, steps: int, size: int, folder: Path) -> Rate:
    """What all workers of a job reach."""
    command = [sys.executable, "-m", "fleetx.launch", "--server_num=2", f"--worker_num={workers}"]
    command += [f"--log_dir={folder}", __file__, "--work", mode, "--folder", str(folder)]
    command += ["--steps", str(steps), "--batch_size", str(size)]
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
    clock, work = 0.0, 0.0
    for index in range(workers):
        text = (logs / f"workerlog.{index}").read_text()
        found = [line for line in text.splitlines() if line.startswith("RATE")]
        if not found:
            raise SystemExit(f"worker {index} failed:\n{text[-2000:]}")
        _, rate, used = found[0].split()
        clock, work = clock + float(rate), work + float(used)
    return Rate(clock, work / workers)


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
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work, given.steps, given.batch_size, Path(given.folder))
        return
    found: dict[str, list[Rate]] = {}

    def note(name: str, rate: Rate) -> None:
        found.setdefault(name, []).append(rate)
        print(f"{name}: {rate.clock:,.0f}, {rate.work:.2f} ms", file=sys.stderr, flush=True)

    for _ in range(given.rounds):
        note("one process", local(given.steps, given.batch_size))
        for mode in given.modes:
            for workers in given.workers:
                with tempfile.TemporaryDirectory() as folder:
                    rate = job(mode, workers, given.steps, given.batch_size, Path(folder))
                note(f"{mode}, {workers} workers", rate)
        theirs = [mode for mode in given.modes if mode != "sync"] if given.paddle else []
        for mode, form, workers in itertools.product(theirs, FORMS, given.workers):
            rate = paddle_job(mode, form, workers, given)
            note(f"Paddle, {form}, {mode}, {workers} workers", rate)
    report(found, given.batch_size)


def report(found: dict[str, list[Rate]], size: int) -> None:
    """Print a table, and all that was measured."""
    base = statistics.median(rate.clock for rate in found["one process"])
    cores = os.cpu_count() or 1
    print(f"| | examples/s | against one process | ms a batch | {cores} cores could do |")
    print("|---|---|---|---|---|")
    for name, rates in found.items():
        middle = statistics.median(rate.clock for rate in rates)
        used = statistics.median(rate.work for rate in rates)
        could = cores * size / used * 1e3
        print(f"| {name} | {middle:,.0f} | {middle / base:.2f} | {used:.2f} | {could:,.0f} |")
    print(json.dumps(found))


if __name__ == "__main__":
    main()

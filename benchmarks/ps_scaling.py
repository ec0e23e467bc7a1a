"""Wide and deep with more and more servers and workers: examples per second, and who waits.

    python benchmarks/ps_scaling.py
    python benchmarks/ps_scaling.py --grid 2x2 4x8 --seconds 10 --prefetch

A cell of the grid is servers x workers, as processes of ``fleetrun`` on this machine, each with one
thread for its computing; servers log every push. Workers train asynchronously, for so many seconds,
all of them at once, batches that lie in memory. Cells with as many servers are one job, of which
some workers rest. Those that differ in workers alone say whether more workers make a job faster;
those with as many workers for a server say what a server adds.

Of a server: processor time of a batch and of a request, and the share of a core that it takes. Of a
worker: milliseconds of a batch, those in which its main thread computes, and the round trip of each
kind of request, as its threads see it. Rounds go through all cells in turn.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import fleetx as fleet
from fleetx.ps.wire.channel import Channel
from fleetx.ps.wire.frames import Op, name_of

sys.path.insert(0, str(Path(__file__).parent.parent))  # examples and benchmarks are not installed
from benchmarks.ctr import batches
from benchmarks.unlaunched import seconds

SIZE, BATCHES, WARM, RATE = 512, 60, 60, 0.001
GRID = ("2x1", "2x2", "2x4", "2x8", "4x4", "4x8", "1x1", "1x2", "3x6")


class Trips:
    """How often each kind of request was answered, and how long it took from its sending on."""

    def __init__(self) -> None:
        self.count: dict[str, int] = defaultdict(int)
        self.seconds: dict[str, float] = defaultdict(float)
        self._began: dict[int, float] = {}
        send, receive = Channel.send_all, Channel.receive

        def timed_send(channel: Channel, *args: Any) -> None:
            self._began[id(channel)] = time.perf_counter()
            send(channel, *args)

        def timed_receive(channel: Channel, *args: Any) -> Any:
            kind = name_of(channel._asked[0].frame.op)
            reply = receive(channel, *args)
            self.count[kind] += 1
            self.seconds[kind] += time.perf_counter() - self._began[id(channel)]
            return reply

        patched: Any = Channel
        patched.send_all, patched.receive = timed_send, timed_receive

    def clear(self) -> None:
        """Begin anew."""
        self.count.clear()
        self.seconds.clear()


def meet(folder: Path, name: str, workers: int) -> None:
    """Wait until all workers are here."""
    (folder / f"{name}.{fleet.worker_index()}").touch()
    while len([*folder.glob(f"{name}.*")]) < workers:
        time.sleep(0.01)


def work(folder: Path, limit: float, active: list[int], *, prefetch: bool) -> None:
    """A process of a job; workers write what they saw.

    Args:
        folder: where to.
        limit: seconds that are measured.
        active: how many workers train at a time.
        prefetch: whether rows are fetched one batch ahead.
    """
    from examples.ctr.model import WideAndDeep

    torch.set_num_threads(1)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    fleet.init(strategy=strategy)
    if fleet.is_server():
        fleet.init_server()
        (folder / f"server.{os.getpid()}").touch()
        fleet.run_server()
        return
    trips = Trips()
    model = fleet.distributed_model(WideAndDeep())
    optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=RATE))
    fleet.init_worker()
    data = batches(BATCHES, SIZE, fleet.worker_index(), fleet.device())

    def step(number: int) -> None:
        clicks, dense, ids = data[number % BATCHES]
        loss = binary_cross_entropy_with_logits(model(dense, ids), clicks)
        if prefetch:
            model.prefetch(data[(number + 1) % BATCHES][2])
        optimizer.minimize(loss)

    for number in range(WARM):
        step(number)
    servers = [int(path.suffix[1:]) for path in folder.glob("server.*")]
    for workers in active:
        meet(folder, f"before-{workers}", fleet.worker_num())
        if fleet.worker_index() < workers:
            said = measured(step, limit, servers, trips)
            (folder / f"said-{workers}.{fleet.worker_index()}").write_text(json.dumps(said))
        meet(folder, f"after-{workers}", fleet.worker_num())
    fleet.stop_worker()


def measured(
    step: Callable[[int], None], limit: float, servers: list[int], trips: Trips
) -> dict[str, Any]:
    """What a worker sees while it trains for a while."""
    trips.clear()
    used, began = [seconds(each) for each in servers], time.perf_counter()
    main, done = time.thread_time(), 0
    while time.perf_counter() - began < limit:
        step(done)
        done += 1
    return {
        "steps": done,
        "clock": time.perf_counter() - began,
        "servers": [seconds(each) - before for each, before in zip(servers, used, strict=True)],
        "main": time.thread_time() - main,
        "count": trips.count,
        "trips": trips.seconds,
    }


class Figures(NamedTuple):
    """What a job reached."""

    rate: float
    """Examples a second."""
    server_batch: float
    """Milliseconds of processor time on one server for one batch."""
    server_request: float
    """Microseconds of the same for one request."""
    server_busy: float
    """Of a core, the share that a server took."""
    batch: float
    """Milliseconds of a batch on a worker."""
    computing: float
    """Of these its main thread had the processor."""
    trips: dict[str, float]
    """Milliseconds from a request to its answer."""


def job(servers: int, active: list[int], given: argparse.Namespace) -> dict[int, Figures]:
    """Run one; returns what each number of workers reached."""
    workers = max(active)
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "fleetx.launch", f"--server_num={servers}"]
        command += [f"--worker_num={workers}", f"--log_dir={name}/log", __file__, "--work", name]
        command += ["--active", *map(str, active), "--seconds", str(given.seconds)]
        command += ["--prefetch"] if given.prefetch else []
        # On the processor: a card that all workers share would be the limit instead.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        found = {
            count: [json.loads(path.read_text()) for path in Path(name).glob(f"said-{count}.*")]
            for count in active
        }
        if done.returncode or any(len(each) < count for count, each in found.items()):
            logs = [log.read_text()[-2000:] for log in Path(name).glob("log/*log.*")]
            raise SystemExit("\n".join([done.stdout[-2000:], done.stderr[-2000:], *logs]))
    return {count: summed(each, servers) for count, each in found.items()}


def summed(found: list[dict[str, Any]], servers: int) -> Figures:
    """What the workers of a job saw, together."""
    clock = statistics.mean(each["clock"] for each in found)
    steps = sum(each["steps"] for each in found)
    counts, trips = ({} | each for each in (found[0]["count"], found[0]["trips"]))
    for each in found[1:]:
        for kind, count in each["count"].items():
            counts[kind] = counts.get(kind, 0) + count
            trips[kind] = trips.get(kind, 0) + each["trips"][kind]
    asked = {name_of(op) for op in (Op.PULL, Op.PUSH, Op.READ, Op.WRITE)}
    used = statistics.mean(sum(each["servers"]) / servers for each in found)
    per_request = servers * used / sum(counts[kind] for kind in counts if kind in asked)
    return Figures(
        rate=sum(each["steps"] / each["clock"] for each in found) * SIZE,
        server_batch=1e3 * used / steps,
        server_request=1e6 * per_request,
        server_busy=used / clock,
        batch=1e3 * clock * len(found) / steps,
        computing=1e3 * sum(each["main"] for each in found) / steps,
        trips={kind: 1e3 * trips[kind] / counts[kind] for kind in counts if kind in asked},
    )


def row(cell: str, figures: Figures) -> str:
    """A row of the table."""
    trips = ", ".join(f"{kind} {value:.2f}" for kind, value in sorted(figures.trips.items()))
    return (
        f"| {cell} | {figures.rate:,.0f} | {figures.server_batch:.3f} "
        f"| {figures.server_request:.0f} | {figures.server_busy:.2f} | {figures.batch:.2f} "
        f"| {figures.computing:.2f} | {trips} |"
    )


def report(found: dict[str, list[Figures]]) -> None:
    """Print a table of the middle rounds."""
    columns = "examples/s | server: ms a batch | µs a request | of a core | worker: ms a batch"
    print(f"| servers x workers | {columns} | computing | round trips, ms |")
    print("|---|--:|--:|--:|--:|--:|--:|---|")
    for cell, each in found.items():
        print(row(cell, sorted(each, key=lambda figures: figures.rate)[len(each) // 2]))


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--grid", nargs="+", default=list(GRID), help="servers x workers, as 2x4")
    parser.add_argument("--seconds", type=float, default=4.0, help="for which a job is measured")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--prefetch", action="store_true", help="rows are fetched one batch ahead")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--active", type=int, nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(Path(given.work), given.seconds, given.active, prefetch=given.prefetch)
        return
    jobs: dict[int, list[int]] = {}
    for cell in given.grid:
        servers, _, workers = cell.partition("x")
        jobs.setdefault(int(servers), []).append(int(workers))
    found: dict[str, list[Figures]] = {cell: [] for cell in given.grid}
    for _ in range(given.rounds):
        for servers, active in jobs.items():
            began = time.perf_counter()
            reached = job(servers, active, given)
            for workers, figures in reached.items():
                found[f"{servers}x{workers}"].append(figures)
                print(row(f"{servers}x{workers}", figures), file=sys.stderr, flush=True)
            took = time.perf_counter() - began
            print(f"{servers} servers: {took:.0f} s", file=sys.stderr, flush=True)
    report(found)


if __name__ == "__main__":
    main()

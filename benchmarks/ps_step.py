"""A worker's step over 20,000 rows of one server, against the same step with Paddle's servers.

    python benchmarks/ps_step.py
    pip install --target /somewhere paddlepaddle==2.6.2 protobuf==3.20.3 'numpy<2'
    python benchmarks/ps_step.py --paddle /somewhere

A step looks up 20,000 different ids of 240,000, rows of 16 floats, differentiates the mean of their
squares and pushes the gradients; SGD, asynchronous, one server and one worker. Jobs of all kinds
take turns. The clock of the worker's step is shown, and processor time of worker and server.

Kinds: the plain loop; the same with the rows of the next batch fetched meanwhile; that with a log
of all pushes, from which a killed server comes back, as jobs of fleetrun have it; and Paddle.
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
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # the benchmarks are not installed
from benchmarks import unlaunched
from benchmarks.unlaunched import seconds

IDS, BATCHES, WIDTH, RATE = 20_000, 12, 16, 0.05
PLAIN, AHEAD, LOGGED, PADDLE = "fleetx", "fleetx, ahead", "fleetx, ahead, logged", "Paddle"
Figures = dict[str, float]


def batches() -> list[Any]:
    """Disjoint sets of ids, in an order that is chance."""
    import numpy as np

    ids = np.random.default_rng(0).permutation(IDS * BATCHES).astype(np.int64)
    return list(ids.reshape(BATCHES, IDS))


def measured(step: Callable[[Any], object], server: int, steps: int) -> Figures:
    """Milliseconds of a step, after each row was made."""
    data = batches()
    for ids in data + data:
        step(ids)
    worker, other, times = time.process_time(), seconds(server), []
    for number in range(steps):
        began = time.perf_counter()
        step(data[number % BATCHES])
        times.append(time.perf_counter() - began)
    return {
        "step": 1e3 * statistics.median(times),
        "best": 1e3 * min(times),
        "server": 1e3 * (seconds(server) - other) / steps,
        "worker": 1e3 * (time.process_time() - worker) / steps,
    }


def with_fleetx(steps: int, folder: Path, *, ahead: bool) -> None:
    """A process of our job."""
    import torch

    import fleetx as fleet
    from fleetx.nn import SparseEmbedding

    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    fleet.init(strategy=strategy)
    if fleet.is_server():
        fleet.init_server()
        (folder / "server").write_text(str(os.getpid()))
        fleet.run_server()
        return
    model = fleet.distributed_model(SparseEmbedding(WIDTH, name="rows"))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=RATE))
    fleet.init_worker()

    coming = itertools.cycle(torch.from_numpy(ids) for ids in batches())
    next(coming)

    def step(ids: Any) -> None:
        loss = model(torch.from_numpy(ids)).square().mean()
        if ahead:
            model.prefetch(next(coming))
        optimizer.minimize(loss)

    said = measured(step, int((folder / "server").read_text()), steps)
    fleet.stop_worker()
    (folder / "figures").write_text(json.dumps(said))


def with_paddle(steps: int, folder: Path) -> None:
    """A process of the same job in Paddle."""
    import paddle  # type: ignore[import-not-found, unused-ignore]
    from paddle.distributed import fleet  # type: ignore[import-not-found, unused-ignore]

    paddle.enable_static()
    fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
    ids = paddle.static.data("ids", [None, 1], "int64")
    name = paddle.ParamAttr(name="rows")
    rows = paddle.static.nn.sparse_embedding(ids, [IDS * BATCHES, WIDTH], param_attr=name)
    loss = paddle.mean(paddle.square(rows))
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    vars(fleet)["DistributedStrategy"].__repr__ = object.__repr__  # its own fails here
    fleet.distributed_optimizer(paddle.optimizer.SGD(RATE), strategy).minimize(loss)
    if fleet.is_server():
        fleet.init_server()
        (folder / "server").write_text(str(os.getpid()))
        fleet.run_server()
        return
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    main = paddle.static.default_main_program()

    def step(ids: Any) -> None:
        exe.run(main, feed={"ids": ids[:, None]}, fetch_list=[loss])

    said = measured(step, int((folder / "server").read_text()), steps)
    (folder / "figures").write_text(json.dumps(said))
    fleet.stop_worker()


def launched(command: list[str], folder: Path) -> None:
    """Run a server and a worker with fleetrun."""
    launch = [sys.executable, "-m", "fleetx.launch", "--server_num=1", "--worker_num=1"]
    launch += [f"--log_dir={folder / 'log'}", *command]
    subprocess.run(launch, capture_output=True, timeout=120, check=False)


def job(kind: str, steps: int, path: str) -> Figures:
    """What the worker of a job says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [__file__, "--work", kind, "--folder", name, "--steps", str(steps)]
        if kind == LOGGED:
            launched(command, folder)
        else:
            paths = {"PYTHONPATH": path} if kind == PADDLE else {}
            unlaunched.run(command, folder, environment=paths)
        if not (folder / "figures").exists():
            logs = [log.read_text()[-2000:] for log in folder.glob("log/*log.*")]
            raise SystemExit("\n".join([f"{kind} failed:", *logs]))
        found: Figures = json.loads((folder / "figures").read_text())
        return found


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--paddle", default="", help="a folder in which Paddle is installed")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        if given.work == PADDLE:
            with_paddle(given.steps, given.folder)
        else:
            with_fleetx(given.steps, given.folder, ahead=given.work != PLAIN)
        return
    kinds = [PLAIN, AHEAD, LOGGED, *([PADDLE] if given.paddle else [])]
    found: dict[str, list[Figures]] = {kind: [] for kind in kinds}
    for _ in range(given.rounds):
        for kind in kinds:
            found[kind].append(job(kind, given.steps, given.paddle))
            said = ", ".join(f"{name} {value:.2f}" for name, value in found[kind][-1].items())
            print(f"{kind} (ms): {said}", flush=True)
    for kind in kinds[:-1] if given.paddle else ():
        pairs = list(zip(found[PADDLE], found[kind], strict=True))
        for name in pairs[0][0]:
            ratio = statistics.median(theirs[name] / ours[name] for theirs, ours in pairs)
            print(f"{name}: Paddle takes {ratio:.1f} times as long as {kind}")


if __name__ == "__main__":
    main()

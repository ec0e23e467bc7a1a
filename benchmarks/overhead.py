"""What fleetx adds to a step: data parallel through fleetx against the same DDP written by hand.

Both are trained in the same two processes, a few steps of one after a few steps of the other, so
that noise of the machine hits both alike; a second copy of the hand-written step says how large
that noise is.

python benchmarks/overhead.py                    # two CPU workers, small MLP and small ResNet
python benchmarks/overhead.py --rounds 40        # longer, steadier
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import fleetx as fleet

sys.path.insert(0, str(Path(__file__).parent.parent))
from examples.resnet.model import ResNet

Step = Callable[[], None]
CHUNK = 5
"""Steps of one kind before the other kind has its turn."""


def by_hand(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    """The loop everybody writes."""
    ddp = DistributedDataParallel(
        model.to(inputs.device), bucket_cap_mb=32, gradient_as_bucket_view=True
    )
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        loss = F.cross_entropy(ddp(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def through_fleetx(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    """The same through the plan."""
    model = fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(
        torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    )

    def step() -> None:
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.minimize(loss)

    return step


def time_chunk(step: Step) -> float:
    """Seconds per step; the workers start together."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(CHUNK):
        step()
    _drain()
    return (time.perf_counter() - start) / CHUNK


def _drain() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def compare(make: Callable[[], nn.Module], inputs: Tensor, rounds: int) -> dict[str, float]:
    """Median milliseconds of DDP by hand, of fleetx, and of DDP by hand once more as a control."""
    inputs = inputs.to(fleet.device())
    targets = torch.randint(0, 10, (len(inputs),), device=inputs.device)
    kinds = {"by_hand": by_hand, "fleetx": through_fleetx, "control": by_hand}
    steps = {kind: build(make(), inputs, targets) for kind, build in kinds.items()}
    for step in steps.values():
        time_chunk(step)
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    names = list(kinds)
    for turn in range(rounds):
        first = turn % len(names)  # none is always the one that goes first
        for kind in names[first:] + names[:first]:
            times[kind].append(time_chunk(steps[kind]))
    return {kind: 1e3 * statistics.median(found) for kind, found in times.items()}


def wrapper_cost(repeats: int = 3000) -> float:
    """Microseconds that fleetx adds to a step of one process, where nothing is exchanged."""
    layer, inputs = nn.Linear(4, 1).to(fleet.device()), torch.ones(2, 4, device=fleet.device())
    plain = torch.optim.SGD(layer.parameters(), lr=1e-3)

    def bare() -> None:
        layer(inputs).sum().backward()
        plain.step()
        plain.zero_grad()

    model = fleet.distributed_model(nn.Linear(4, 1))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1e-3))

    def wrapped() -> None:
        optimizer.minimize(model(inputs).sum())

    def best(step: Step) -> float:
        found = []
        for _ in range(repeats // 100):
            start = time.perf_counter()
            for _ in range(100):
                step()
            found.append((time.perf_counter() - start) / 100)
        return min(found)

    return 1e6 * (best(wrapped) - best(bare))


def worker(rounds: int) -> None:
    """What each of the two processes runs."""
    torch.set_num_threads(1)
    fleet.init(is_collective=True)

    def mlp() -> nn.Module:
        return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))

    results: dict[str, object] = {
        "small MLP": compare(mlp, torch.randn(64, 256), rounds * 5),
        "small ResNet": compare(lambda: ResNet(width=8), torch.randn(16, 3, 32, 32), rounds),
    }
    if fleet.is_first_worker():
        print(json.dumps(results))


def import_cost(repeats: int = 7) -> float:
    """Milliseconds that ``import fleetx`` takes after ``import torch``: the median."""
    code = (
        "import torch, time; a = time.perf_counter(); import fleetx; "
        "print(1e3 * (time.perf_counter() - a))"
    )
    runs = [subprocess.check_output([sys.executable, "-c", code]) for _ in range(repeats)]
    return statistics.median(float(run) for run in runs)


def main() -> None:
    """Start two workers and print what they measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="pairs of chunks (default: 20)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.rounds)
        return
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", __file__, "--worker"]
    output = subprocess.check_output(
        [sys.executable, *command, "--rounds", str(args.rounds)], text=True
    )
    for name, row in json.loads(output.splitlines()[-1]).items():
        print(
            f"{name}: DDP by hand {row['by_hand']:.2f} ms, fleetx {row['fleetx']:.2f} ms, "
            f"ratio {row['fleetx'] / row['by_hand']:.3f} (goal: at most 1.02); "
            f"DDP against itself {row['control'] / row['by_hand']:.3f}"
        )
    fleet.init(is_collective=True)
    print(f"wrapper: {wrapper_cost():.0f} us a step (goal: below 50)")
    print(f"import fleetx after torch: {import_cost():.1f} ms (goal: at most 50)")


if __name__ == "__main__":
    main()

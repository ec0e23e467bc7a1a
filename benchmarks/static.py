"""What a program costs: a step of it against the same step in a plain loop, in one process.

Chunks of both take turns, so that noise of the machine hits both alike; a second copy of the plain
loop says how large that noise is. With --compiled, a program with fusion stands against
torch.compile of the eager model, which is meant for a GPU.

python benchmarks/static.py                      # small MLP, transformer and ResNet on the CPU
python benchmarks/static.py --rounds 60          # longer, steadier
python benchmarks/static.py --device cuda --compiled
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fleetx import static

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.static.models import ResNet, Transformer

Step = Callable[[], Any]
CHUNK = 5
"""Steps of one kind before the other kind has its turn."""


def by_hand(
    model: nn.Module, x: Tensor, y: Tensor, *, device: torch.device, compiled: bool
) -> Step:
    """The loop everybody writes; the loss is read at the end, as an executor does."""
    model = model.to(device)

    def forward(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    run = torch.compile(forward) if compiled else forward
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> float:
        loss = run(x.to(device), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach().item()

    return step


def by_program(
    model: nn.Module, x: Tensor, y: Tensor, *, device: torch.device, compiled: bool
) -> Step:
    """The same as a program."""
    main = static.Program()
    with static.program_guard(main, static.Program()):
        image = static.data("x", [None, *x.shape[1:]], x.dtype)
        label = static.data("y", [None], y.dtype)
        loss = F.cross_entropy(model(image), label)
        static.Optimizer(torch.optim.SGD, lr=1e-3, momentum=0.9).minimize(loss)
    exe = static.Executor(device)
    build = static.BuildStrategy()
    build.enable_auto_fusion = compiled
    program = static.CompiledProgram(main, build)
    feed, fetch = {"x": x.numpy(), "y": y.numpy()}, [loss]

    def step() -> float:
        return float(exe.run(program, feed, fetch)[0])

    return step


def time_chunk(step: Step, chunk: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds per step."""
    start = clock()
    for _ in range(chunk):
        step()
    return (clock() - start) / chunk


def compare(
    make: Callable[[], nn.Module],
    x: Tensor,
    *,
    rounds: int,
    chunk: int,
    clock: Callable[[], float],
    **options: Any,
) -> dict[str, float]:
    """Median milliseconds of the plain loop, the program, and the plain loop once more."""
    y = torch.randint(0, 4, (len(x),))
    kinds = {"by_hand": by_hand, "program": by_program, "control": by_hand}
    steps = {}
    for kind, build in kinds.items():
        torch.manual_seed(0)
        steps[kind] = build(make(), x, y, **options)
    for step in steps.values():
        time_chunk(step, chunk)
        time_chunk(step, chunk)
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    names = list(kinds)
    for turn in range(rounds):
        first = turn % len(names)  # none is always the one that goes first
        for kind in names[first:] + names[:first]:
            times[kind].append(time_chunk(steps[kind], chunk, clock))
    return {kind: 1e3 * statistics.median(found) for kind, found in times.items()}


def mlp() -> nn.Module:
    """Three layers."""
    return nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def tiny() -> nn.Module:
    """Hardly anything: what a run costs by itself."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def transformer() -> nn.Module:
    """Two encoder layers with dropout."""
    return Transformer(words=1000, width=128)


def small_resnet() -> nn.Module:
    """Four blocks, narrow."""
    return ResNet((1, 1, 1, 1), width=16)


def resnet50() -> nn.Module:
    """The real one."""
    return ResNet(classes=1000)


def main() -> None:
    """Print one line for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30, help="turns of each kind (default: 30)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cpu_time", action="store_true", help="for a machine that others use")
    parser.add_argument("--compiled", action="store_true", help="against torch.compile")
    args = parser.parse_args()
    device = torch.device(args.device)
    options: dict[str, Any] = {"device": device, "compiled": args.compiled, "rounds": args.rounds}
    options["clock"] = time.process_time if args.cpu_time else time.perf_counter
    big = device.type == "cuda"
    models: dict[str, tuple[Callable[[], nn.Module], Tensor, int]] = {
        "tiny": (tiny, torch.randn(2, 8), 50),
        "MLP": (mlp, torch.randn(64, 256), 10),
        "transformer": (transformer, torch.randint(0, 1000, (16, 32)), 5),
        "ResNet": (
            resnet50 if big else small_resnet,
            torch.randn(64 if big else 8, 3, 224 if big else 32, 224 if big else 32),
            5,
        ),
    }
    for name, (make, x, chunk) in models.items():
        row = compare(make, x, chunk=chunk, **options)
        more = 1e3 * (row["program"] - row["by_hand"])
        goal = f"{more:.0f} us more" if name == "tiny" else "goal: at most 1.02"
        print(
            f"{name}: plain {row['by_hand']:.3f} ms, program {row['program']:.3f} ms, ratio "
            f"{row['program'] / row['by_hand']:.3f} ({goal}); plain against itself "
            f"{row['control'] / row['by_hand']:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

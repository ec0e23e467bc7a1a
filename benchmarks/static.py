"""What a program costs: a step of it against the same step in a plain loop, in one process.

Chunks of both take turns, so that noise of the machine hits both alike; a second copy of the plain
loop says how large that noise is. With --compile, a program with fusion stands against
torch.compile of the eager model, which is meant for a GPU.

python benchmarks/static.py                      # small MLP, transformer and ResNet on the CPU
python benchmarks/static.py --rounds 60          # longer, steadier
python benchmarks/static.py --device cuda        # ResNet50 on images of 224 x 224
python benchmarks/static.py --device cuda --compile
python benchmarks/static.py --models MLP ResNet  # some of the models
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
MODELS = ("tiny", "MLP", "transformer", "ResNet")


def by_hand(
    model: nn.Module, x: Tensor, y: Tensor, *, device: torch.device, compiled: bool
) -> Step:
    """The loop everybody writes; from arrays to a number, as an executor does."""
    model, images, labels = model.to(device), x.numpy(), y.numpy()

    def forward(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y)

    run = torch.compile(forward) if compiled else forward
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> float:
        loss = run(torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device))
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


def mlp(wide: int = 1024) -> nn.Module:
    """Three layers."""
    return nn.Sequential(
        nn.Linear(256, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 10)
    )


def tiny() -> nn.Module:
    """Hardly anything: what a run costs by itself."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def models(big: bool) -> dict[str, tuple[Callable[[], nn.Module], Tensor, int]]:
    """Name -> how it is made, inputs, and steps before the other kind has its turn.

    A card computes small models in less time than it takes to ask for that, so they are larger.
    """
    if big:
        return {
            "tiny": (tiny, torch.randn(2, 8), 50),
            "MLP": (lambda: mlp(8192), torch.randn(4096, 256), 10),
            "transformer": (
                lambda: Transformer(words=1000, width=512),
                torch.randint(0, 1000, (512, 32)),
                5,
            ),
            "ResNet": (lambda: ResNet(classes=1000), torch.randn(64, 3, 224, 224), 5),
        }
    return {
        "tiny": (tiny, torch.randn(2, 8), 50),
        "MLP": (mlp, torch.randn(64, 256), 10),
        "transformer": (
            lambda: Transformer(words=1000, width=128),
            torch.randint(0, 1000, (16, 32)),
            5,
        ),
        "ResNet": (lambda: ResNet((1, 1, 1, 1), width=16), torch.randn(8, 3, 32, 32), 5),
    }


def main() -> None:
    """Print one line for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30, help="turns of each kind (default: 30)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cpu_time", action="store_true", help="for a machine that others use")
    parser.add_argument("--compile", action="store_true", help="both sides with torch.compile")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        name, version = torch.cuda.get_device_name(device), torch.__version__
        print(f"{name}, torch {version}", flush=True)
    options: dict[str, Any] = {"device": device, "compiled": args.compile, "rounds": args.rounds}
    options["clock"] = time.process_time if args.cpu_time else time.perf_counter
    known = models(big=device.type == "cuda")
    for name in args.models:
        make, x, chunk = known[name]
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

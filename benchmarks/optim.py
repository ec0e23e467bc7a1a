"""LARS and LAMB against torch's fused SGD and AdamW, on the parameters of ResNet50.

The optimizers take turns, so that noise of the machine hits all alike. On a GPU each step is timed
by the host clock with the device drained before and after: what a training loop would feel.

python benchmarks/optim.py                # CPU, and the GPU if there is one
python benchmarks/optim.py --rounds 50    # longer, steadier
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from fleetx.optim.lamb import Lamb
from fleetx.optim.lars import Lars

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Width and number of the blocks of ResNet50."""

Make = Callable[[list[nn.Parameter]], Optimizer]


def shapes() -> Iterator[tuple[int, ...]]:
    """The shapes of ResNet50's 161 parameters, in its order."""

    def convolution(out: int, into: int, size: int) -> Iterator[tuple[int, ...]]:
        yield from ((out, into, size, size), (out,), (out,))  # followed by a batch norm

    yield from convolution(64, 3, 7)
    channels = 64
    for width, blocks in STAGES:
        for block in range(blocks):
            yield from convolution(width, channels, 1)
            yield from convolution(width, width, 3)
            yield from convolution(4 * width, width, 1)
            if block == 0:
                yield from convolution(4 * width, channels, 1)
            channels = 4 * width
    yield from ((1000, 2048), (1000,))


def parameters(device: torch.device) -> list[nn.Parameter]:
    """ResNet50's parameters with gradients."""
    generator = torch.Generator().manual_seed(0)
    found = [nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in shapes()]
    for parameter in found:
        parameter.grad = 0.01 * torch.randn(parameter.shape, generator=generator).to(device)
    return found


def apart(params: list[nn.Parameter]) -> list[dict[str, object]]:
    """One group; batch norms and biases, all vectors, are excluded as in the documents."""
    return [{"params": params, "excluded": tuple(i for i, p in enumerate(params) if p.dim() == 1)}]


MAKERS: dict[str, Make] = {
    "fused SGD": lambda params: SGD(params, 1e-3, momentum=0.9, weight_decay=5e-4, fused=True),
    "LARS": lambda params: Lars(apart(params), 1e-3),
    "LARS, nothing excluded": lambda params: Lars(params, 1e-3),
    "LARS, list operations": lambda params: Lars(apart(params), 1e-3, fused=False),
    "fused AdamW": lambda params: AdamW(params, 1e-3, fused=True),
    "LAMB": lambda params: Lamb(apart(params), 1e-3),
    "LAMB, nothing excluded": lambda params: Lamb(params, 1e-3),
    "LAMB, list operations": lambda params: Lamb(apart(params), 1e-3, fused=False),
}
BASES = {"LARS": "fused SGD", "LAMB": "fused AdamW"}


def timed(step: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def compare(device: torch.device, rounds: int) -> dict[str, dict[str, float]]:
    """Median milliseconds of each optimizer, and the median of its ratios to torch's."""
    steps = {name: make(parameters(device)).step for name, make in MAKERS.items()}
    for _ in range(3):
        for step in steps.values():
            timed(step, device)
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            found[name].append(timed(step, device))
    return {name: summary(name, found) for name in steps}


def summary(name: str, found: dict[str, list[float]]) -> dict[str, float]:
    """The numbers of one optimizer."""
    row = {"ms": round(statistics.median(found[name]), 3)}
    if base := BASES.get(name[:4]):
        pairs = zip(found[name], found[base], strict=True)
        row["ratio"] = round(statistics.median(ours / theirs for ours, theirs in pairs), 2)
    return row


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="turns (default: 20)")
    rounds = parser.parse_args().rounds
    devices = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    results = {
        device.type: compare(device, rounds if device.type == "cpu" else 10 * rounds)
        for device in devices
    }
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()

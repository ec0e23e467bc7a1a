"""What deep gradient compression costs a worker before anything is sent.

The largest entries of a gradient are chosen and packed: by torch's exact top-k and by the way
of fleetx, in turns, so that noise of the machine hits both alike. Then a whole model: momentum
correction, choice and packing for every large tensor of a ResNet-50, as in one backward.

python benchmarks/dgc.py                              # on the GPU if there is one
python benchmarks/dgc.py --device cpu --numbers 5e6   # smaller, for a laptop
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from fleetx.strategies.dgc import sparse
from fleetx.strategies.dgc.momentum_correction import Kept, Rule, correct

Way = Callable[[], object]
TABLES = sparse.Tables()


def by_top_k(values: Tensor, wanted: int) -> Tensor:
    """What everybody would write."""
    where = values.abs().topk(wanted, sorted=False).indices
    return sparse.pack(where.int(), values[where])


def by_fleetx(values: Tensor, wanted: int) -> Tensor:
    """The same message; in rare cases a few of the smallest entries differ."""
    where = sparse.choose(values, sparse.Sizes((values.numel(),), (wanted,)), TABLES)
    return sparse.pack(where.int(), values[where.clamp_min(0)])


def resnet50() -> list[int]:
    """How many numbers the large tensors of a ResNet-50 hold."""
    sizes, inside = [1000 * 2048], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        sizes.append(inside * 4 * width)
        for _ in range(blocks):
            sizes += [inside * width, 9 * width * width, 4 * width * width]
            inside = 4 * width
    return [size for size in sizes if size >= 16_384]


def backward(numbers: Sequence[int], sparsity: float, device: torch.device) -> Way:
    """All that a worker does between its gradients and the network, as one bucket."""
    rules = [Rule("", Parameter(torch.randn(n, device=device)), 0.9, False, 0.0) for n in numbers]
    kept = [Kept(torch.randn_like(r.parameter), torch.randn_like(r.parameter)) for r in rules]
    gradients = [torch.randn_like(rule.parameter) for rule in rules]
    sizes = sparse.sizes(numbers, sparsity)

    @torch.no_grad()
    def run() -> Tensor:
        velocity, waiting = (torch.empty(sum(numbers), device=device) for _ in range(2))
        views = velocity.split(sizes.numbers), waiting.split(sizes.numbers)
        for rule, old, gradient, u, v in zip(rules, kept, gradients, *views, strict=True):
            correct(rule, old, gradient, velocity=u, waiting=v)
        where, values = sparse.take(
            velocity, waiting, sizes, TABLES, scale=None, wire=torch.float32
        )
        return sparse.pack(where.int(), values)

    return run


def seconds(way: Way, device: torch.device, repeats: int) -> float:
    """Seconds a call takes when calls follow each other, as they do in training."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(repeats):
        way()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / repeats


def compare(ways: Sequence[Way], device: torch.device, rounds: int, repeats: int) -> list[float]:
    """Median milliseconds of each way; the ways take turns."""
    for way in ways:
        seconds(way, device, 2)
    found = [[seconds(way, device, repeats) for way in ways] for _ in range(rounds)]
    return [1e3 * statistics.median(times) for times in zip(*found, strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--numbers", type=float, default=25.6e6, help="default: 25.6e6")
    parser.add_argument("--sparsity", type=float, default=0.999, help="default: 0.999")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each way (default: 15)")
    args = parser.parse_args()
    device, repeats = torch.device(args.device), 20 if args.device == "cuda" else 1
    torch.manual_seed(0)
    values = torch.randn(int(args.numbers), device=device)
    wanted = sparse.share(values.numel(), args.sparsity)
    exact, ours = compare(
        [lambda: by_top_k(values, wanted), lambda: by_fleetx(values, wanted)],
        device,
        args.rounds,
        repeats,
    )
    print(f"choose and pack {wanted:,} of {values.numel():,} numbers on {device}:")
    print(f"  exact top-k {exact:.3f} ms, fleetx {ours:.3f} ms (goal on an H200: below 0.4)")
    sizes = resnet50()
    (whole,) = compare(
        [backward(sizes, args.sparsity, device)], device, args.rounds, max(1, repeats // 4)
    )
    print(f"ResNet-50, {len(sizes)} tensors, {sum(sizes):,} numbers:")
    print(f"  momentum correction, choosing, packing {whole:.3f} ms per update")


if __name__ == "__main__":
    main()

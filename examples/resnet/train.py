"""Train a small ResNet on generated images; the same script runs on any number of workers.

python examples/resnet/train.py                                # one process
fleetrun --nproc_per_node 2 examples/resnet/train.py           # two CPU workers
fleetrun --gpus 0,1,2,3 examples/resnet/train.py               # four cards
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from tqdm import tqdm

import fleetx as fleet

try:
    from examples.resnet.images import CLASSES, Stripes
    from examples.resnet.model import ResNet
except ModuleNotFoundError:  # started as a script: its own folder is on the path
    from images import CLASSES, Stripes  # type: ignore[import-not-found, no-redef]
    from model import ResNet  # type: ignore[import-not-found, no-redef]


@dataclass
class History:
    """What the plot shows."""

    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)


def main() -> None:
    """Train, evaluate, save."""
    args = arguments()
    strategy = fleet.DistributedStrategy()
    if args.strategy:
        strategy.load_from_prototxt(args.strategy)
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(args.seed)

    model = fleet.distributed_model(ResNet(CLASSES, args.width))
    optimizer = fleet.distributed_optimizer(
        torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=5e-4)
    )
    train = loader(Stripes(args.samples, seed=args.seed), args.batch_size, shuffle=True)
    test = loader(Stripes(args.samples // 8, seed=args.seed + 1), args.batch_size, shuffle=False)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, rise_and_fall(args.epochs * len(train))
    )
    history, first = History(), 0
    checkpoint = args.output / "checkpoint.pt"
    if args.resume and checkpoint.exists():
        first, history = load(checkpoint, model, optimizer, scheduler)
        train.set_epoch(first)

    for epoch in range(first, args.epochs):
        run_epoch(model, optimizer, scheduler, train, history)
        history.accuracies.append(evaluate(model, test))
        say(
            f"epoch {epoch + 1}/{args.epochs}: loss {mean(history.losses[-len(train) :]):.3f}, "
            f"test accuracy {history.accuracies[-1]:.1%}"
        )
        if fleet.is_first_worker():
            save(checkpoint, epoch + 1, history, model, optimizer, scheduler)
    if fleet.is_first_worker():
        plot(args.output / "loss.png", history)
    say(f"saved {checkpoint} and {args.output / 'loss.png'}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add: Callable[..., Any] = parser.add_argument
    add("--epochs", type=int, default=5, help="passes over the images (default: %(default)s)")
    add("--samples", type=int, default=2048, help="training images (default: %(default)s)")
    add("--batch_size", type=int, default=32, help="images per worker (default: %(default)s)")
    add("--lr", type=float, default=0.1, help="highest learning rate (default: %(default)s)")
    add("--width", type=int, default=16, help="channels of the stem (default: %(default)s)")
    add("--seed", type=int, default=0, help="of images and weights (default: %(default)s)")
    add("--strategy", help="a DistributedStrategy saved as prototxt")
    add("--output", type=Path, default=Path("output"), help="checkpoint and plot go here")
    add("--resume", action="store_true", help="continue from the checkpoint in --output")
    return parser.parse_args()


def loader(images: Stripes, batch_size: int, *, shuffle: bool) -> fleet.DistributedLoader:
    """This worker's share of the images."""
    return fleet.distributed_loader(DataLoader(images, batch_size, shuffle=shuffle))


def rise_and_fall(total: int) -> Callable[[int], float]:
    """A learning rate that rises for a third of the updates and falls along a cosine."""

    def share(update: int) -> float:
        done = (update + 1) / (total + 1)
        return 3 * done if done < 1 / 3 else (1 + math.cos(math.pi * (1.5 * done - 0.5))) / 2

    return share


def run_epoch(
    model: nn.Module,
    optimizer: fleet.DistributedOptimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
    batches: fleet.DistributedLoader,
    history: History,
) -> None:
    """One pass over the training images, with a progress bar on the first worker."""
    model.train()
    bar = tqdm(
        batches,
        desc=f"epoch {len(history.accuracies) + 1}",
        unit="batch",
        disable=not fleet.is_first_worker(),
        mininterval=0.5,
    )
    for images, labels in bar:
        loss = F.cross_entropy(model(images), labels)
        optimizer.minimize(loss)
        scheduler.step()
        history.losses.append(float(loss.detach()))
        bar.set_postfix(loss=f"{history.losses[-1]:.3f}", refresh=False)


@torch.no_grad()
def evaluate(model: nn.Module, batches: fleet.DistributedLoader) -> float:
    """The share of test images that are recognised, over all workers."""
    model.eval()
    right = torch.zeros(2)
    for images, labels in batches:
        right += torch.tensor([correct(model(images), labels), len(labels)])
    total = fleet.util.all_reduce(right)
    return float(total[0] / total[1])


def correct(logits: Tensor, labels: Tensor) -> int:
    """How many of a batch are right."""
    return int((logits.argmax(dim=1) == labels).sum())


def save(path: Path, epoch: int, history: History, *parts: Any) -> None:
    """Write the checkpoint beside the old one, then replace it: a kill loses neither."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    states = [part.state_dict() for part in parts]
    torch.save({"epoch": epoch, "history": asdict(history), "states": states}, fresh)
    fresh.replace(path)


def load(path: Path, *parts: Any) -> tuple[int, History]:
    """Take the parts back to where the checkpoint was written."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    for part, state in zip(parts, saved["states"], strict=True):
        part.load_state_dict(state)
    return saved["epoch"], History(**saved["history"])


def plot(path: Path, history: History) -> None:
    """Draw loss and accuracy into a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, left = plt.subplots(figsize=(7, 4), layout="constrained")
    left.plot(history.losses, color="tab:blue", linewidth=1)
    left.set(xlabel="update", ylabel="training loss", ylim=(0, None))
    right = left.twinx()
    per_epoch = len(history.losses) / len(history.accuracies)
    updates = [per_epoch * (epoch + 1) for epoch in range(len(history.accuracies))]
    right.plot(updates, history.accuracies, color="tab:orange", marker="o")
    right.set(ylabel="test accuracy", ylim=(0, 1.02))
    left.set_title(f"ResNet on generated images, {fleet.worker_num()} workers")
    figure.savefig(path, dpi=120)


def mean(values: list[float]) -> float:
    """The average."""
    return sum(values) / len(values)


def say(message: str) -> None:
    """Print on the first worker alone."""
    fleet.util.print_on_rank(message, 0)


if __name__ == "__main__":
    main()

"""A picture of a training run, from the curves that it wrote for TensorBoard."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PANELS = (
    ("loss", {"loss": "training loss"}),
    ("accuracy", {"acc1": "first guess right", "acc5": "among the first five"}),
    ("images per second", {"images_per_second": "of all workers"}),
)
"""Title -> names of curves, and what they are called."""
COLOURS = ("#4269d0", "#efb118")

Points = Sequence[tuple[int, float]]


def save_curves(events: Path, file: Path) -> Path:
    """Draw loss, accuracy and throughput as a PNG.

    Args:
        events: the folder of a ``SummaryWriter``; all runs in it, a resumed one too.
        file: the picture.

    Raises:
        ModuleNotFoundError: matplotlib or tensorboard is not installed.
    """
    from matplotlib.figure import Figure

    found = _points(events)
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    for axes, (title, curves) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        _draw(axes, title, {words: found.get(name, ()) for name, words in curves.items()})
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    return file


def _points(events: Path) -> dict[str, Points]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(events), size_guidance={"scalars": 10_000}).Reload()
    names = read.Tags()["scalars"]
    return {name: [(point.step, point.value) for point in read.Scalars(name)] for name in names}


def _draw(axes: Any, title: str, curves: Mapping[str, Points]) -> None:
    for (words, points), colour in zip(curves.items(), COLOURS, strict=False):
        if points:
            steps, values = zip(*points, strict=True)
            mark = "o" if len(points) < 50 else ""
            axes.plot(steps, values, color=colour, label=words, marker=mark, markersize=3)
    axes.set_title(title)
    axes.set_xlabel("batches")
    axes.set_ylim(0, 1.05 if title == "accuracy" else None)
    axes.grid(alpha=0.3)
    if any(curves.values()):
        axes.legend(fontsize="small", loc="lower right" if title == "accuracy" else "best")

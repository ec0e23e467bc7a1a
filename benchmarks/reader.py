"""Decoded and augmented images per second and core: fleetx against two loaders written by hand.

- ours: ``fleetx.data.images.train_loader``
- PIL: ``DataLoader`` over PIL, crops and scaling as most people write them
- OpenCV: ``DataLoader`` over OpenCV, one sample at a time, written by hand

All of them give float32 batches of the same random crops (224 x 224 of photographs about 500 x 400)
in one process, a few batches of one after a few of the next, so that noise of the machine hits
all alike; the figure is the median of the rounds.

python benchmarks/reader.py                # drawn images
python benchmarks/reader.py --data_dir X   # your own, in either layout
python benchmarks/reader.py --processes 1 --batches 12   # decoded by a process of its own each
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fleetx.data.images import View, train_loader
from fleetx.data.images.files import LabelledFiles, labelled_files
from fleetx.data.making.layouts import Recipe, make

VIEW = View()
MEAN, STD = np.array(VIEW.image_mean, np.float32), np.array(VIEW.image_std, np.float32)
Loader = Callable[[], Iterator[Any]]


class ByHand(Dataset[tuple[Tensor, int]]):
    """What the two hand-written data sets share."""

    def __init__(self, files: LabelledFiles) -> None:
        self.files, self.numbers = files, Random(0)

    def __len__(self) -> int:
        return len(self.files)

    def box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """The crops are drawn alike, so that only reading differs."""
        left, top, across, down = VIEW.random(width, height, self.numbers)
        return int(left), int(top), max(1, int(across)), max(1, int(down))


class WithPil(ByHand):
    """Open, crop, resize, mirror, to tensor, normalise."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.open(self.files.path(index)).convert("RGB")
        left, top, across, down = self.box(*image.size)
        box = (left, top, left + across, top + down)
        image = image.crop(box).resize(VIEW.size, Image.Resampling.BILINEAR)
        if self.numbers.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        tensor = pixels.to(torch.float32).div_(255)
        tensor.sub_(torch.from_numpy(MEAN).view(3, 1, 1)).div_(torch.from_numpy(STD).view(3, 1, 1))
        return tensor, int(self.files.labels[index])


class WithOpenCv(ByHand):
    """Read, crop, resize, mirror, normalise, to tensor."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = cv2.imread(str(self.files.path(index)))
        assert image is not None
        left, top, across, down = self.box(image.shape[1], image.shape[0])
        image = cv2.resize(image[top : top + down, left : left + across], VIEW.size)
        if self.numbers.random() < 0.5:
            image = cv2.flip(image, 1)
        pixels = cv2.cvtColor(image, cv2.COLOR_BGR2RGB).astype(np.float32) / 255
        pixels = (pixels - MEAN) / STD
        tensor = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
        return tensor, int(self.files.labels[index])


def contestants(folder: Path, batch_size: int, processes: int) -> dict[str, Loader]:
    """Endless batches of each."""
    files = labelled_files(folder, "train")

    def one_thread(worker: int) -> None:
        cv2.setNumThreads(0)

    def plain(kind: type[ByHand]) -> Loader:
        loader: DataLoader[Any] = DataLoader(
            kind(files),
            batch_size,
            shuffle=True,
            num_workers=processes,
            worker_init_fn=one_thread,
            drop_last=True,
        )
        return lambda: endless(loader)

    ours = train_loader(folder, batch_size, VIEW, num_workers=processes, drop_last=True)
    return {
        "fleetx": lambda: endless(ours),
        "PIL": plain(WithPil),
        "OpenCV by hand": plain(WithOpenCv),
    }


def endless(loader: Any) -> Iterator[Any]:
    """One epoch after the other."""
    while True:
        yield from loader


def measure(
    loaders: dict[str, Loader], rounds: int, batches: int, batch_size: int
) -> dict[str, list[float]]:
    """Images per second of each round."""
    streams = {name: loader() for name, loader in loaders.items()}
    found: dict[str, list[float]] = {name: [] for name in loaders}
    for stream in streams.values():
        next(stream)
    for _ in range(rounds):
        for name, stream in streams.items():
            began = time.perf_counter()
            for _ in range(batches):
                next(stream)
            found[name].append(batches * batch_size / (time.perf_counter() - began))
    return found


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data_dir", type=Path, help="images of your own (default: drawn ones)")
    parser.add_argument("--size", type=int, default=400, help="short side of drawn images")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batches", type=int, default=2, help="of each loader in each round")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--processes", type=int, default=0, help="0: in this process, one core")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.data_dir or Path(scratch) / "drawn"
        if not args.data_dir:
            make(
                folder,
                Recipe(layout="imagenet", classes=8, train_images=8, val_images=1, size=args.size),
            )
            # A list as long as a real one: an epoch of every loader begins with new processes.
            lines = (folder / "train.txt").read_text(encoding="utf-8")
            (folder / "train.txt").write_text(lines * 64, encoding="utf-8")
        loaders = contestants(folder, args.batch_size, args.processes)
        found = measure(loaders, args.rounds, args.batches, args.batch_size)
    cores = max(1, args.processes)
    figures = {name: statistics.median(speeds) / cores for name, speeds in found.items()}
    # Rounds are compared with their own round: a burst of noise hits its neighbours.
    ratios = {
        name: statistics.median(
            ours / theirs for ours, theirs in zip(found["fleetx"], speeds, strict=True)
        )
        for name, speeds in found.items()
    }
    if args.json:
        print(json.dumps({"images_per_second_and_core": figures, "times": ratios}))
        return
    print(f"{'loader':16} {'images/s/core':>14} {'fleetx is':>10}")
    for name, figure in figures.items():
        print(f"{name:16} {figure:14.0f} {ratios[name]:9.2f}x")


if __name__ == "__main__":
    main()

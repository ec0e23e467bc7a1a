"""Decoded and augmented images per second and core: fleetx against two loaders written by hand.

- ours: ``fleetx.data.images.train_loader``
- PIL: ``DataLoader`` over PIL, crops and scaling as most people write them
- OpenCV: ``DataLoader`` over OpenCV, one sample at a time, written by hand

All of them give float32 batches of the same random crops, 224 x 224 of photographs about 500 x 400,
a few batches of one after a few of the next, so that noise of the machine hits all alike; figures
are medians of the rounds. Each is given twice: by the clock, per process that decodes, and by
processor time, all processes of a loader together, which is what a core has to give.

python benchmarks/reader.py                # drawn images
python benchmarks/reader.py --data_dir X   # your own, in either layout
python benchmarks/reader.py --processes 1 --batches 8   # decoded by a process of its own each
"""

import argparse
import ctypes
import json
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from multiprocessing import active_children
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fleetx.data.images import LabelledFiles, View, train_loader
from fleetx.data.images.files import labelled_files
from fleetx.data.making.layouts import Recipe, make

VIEW = View()
MEAN, STD = np.array(VIEW.image_mean, np.float32), np.array(VIEW.image_std, np.float32)
Loader = Callable[[], Generator[Any]]


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


def endless(loader: Any) -> Generator[Any]:
    """One epoch after the other."""
    while True:
        yield from loader


class Stream:
    """The batches of one loader, and what they cost."""

    def __init__(self, loader: Loader, processes: int) -> None:
        others = {child.pid for child in active_children()}
        self.batches, self.ready = loader(), 2 * processes
        next(self.batches)
        own = {child.pid for child in active_children()} - others
        self.clocks = [time.CLOCK_PROCESS_CPUTIME_ID, *(clock_of(pid) for pid in own if pid)]

    def processor_time(self) -> float:
        """Of this process and those of the loader."""
        return sum(time.clock_gettime(clock) for clock in self.clocks)

    def run(self, batches: int) -> tuple[float, float]:
        """Seconds by the clock and of processors."""
        if self.ready:
            time.sleep(0.3)  # until the processes of the loader before have filled their queues
        for _ in range(self.ready):  # what was decoded before the round began
            next(self.batches)
        spent, began = self.processor_time(), time.perf_counter()
        for _ in range(batches):
            next(self.batches)
        return time.perf_counter() - began, self.processor_time() - spent


def clock_of(process: int) -> int:
    """The clock of another process's processor time."""
    clock = ctypes.c_int()
    failed = ctypes.CDLL(None).clock_getcpuclockid(process, ctypes.byref(clock))
    assert not failed, "a process of a loader has gone"
    return clock.value


@dataclass
class Speeds:
    """Images per second of each round."""

    by_clock: list[float] = field(default_factory=list)
    """Per process that decodes."""
    by_processor: list[float] = field(default_factory=list)

    def times(self, other: "Speeds") -> tuple[float, float]:
        """How many times as fast; rounds are compared with their own, as noise hits neighbours."""
        pairs = (self.by_clock, other.by_clock), (self.by_processor, other.by_processor)
        by_clock, by_processor = (
            median(mine / theirs for mine, theirs in zip(*pair, strict=True)) for pair in pairs
        )
        return by_clock, by_processor


def measure(streams: dict[str, Stream], args: argparse.Namespace) -> dict[str, Speeds]:
    """Some batches of each in turn, many times."""
    found = {name: Speeds() for name in streams}
    images = args.batches * args.batch_size
    for _ in range(args.rounds):
        for name, stream in streams.items():
            seconds, spent = stream.run(args.batches)
            found[name].by_clock.append(images / seconds / max(1, args.processes))
            found[name].by_processor.append(images / spent)
    return found


def main() -> None:
    """Draw images, and read them by turns."""
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
        streams = {name: Stream(loader, args.processes) for name, loader in loaders.items()}
        found = measure(streams, args)
        for stream in streams.values():  # before the images go
            stream.batches.close()
    report(found, as_json=args.json)


def report(found: dict[str, Speeds], *, as_json: bool) -> None:
    """A table, or JSON."""
    ours = found["fleetx"]
    figures = {
        name: {
            "by_clock": median(speeds.by_clock),
            "by_processor": median(speeds.by_processor),
            "times": ours.times(speeds),
        }
        for name, speeds in found.items()
    }
    if as_json:
        print(json.dumps(figures))
        return
    print(f"{'images per second':16} {'and process':>12} {'fleetx is':>10}", end="")
    print(f" {'of processor time':>18} {'fleetx is':>10}")
    for name, speeds in found.items():
        clock, processor = ours.times(speeds)
        print(f"{name:17} {median(speeds.by_clock):12.0f} {clock:9.2f}x", end="")
        print(f" {median(speeds.by_processor):18.0f} {processor:9.2f}x")


if __name__ == "__main__":
    main()

"""The reference script on JPEG files: images per second from the disk to the updated weights.

Draws JPEG files of 500 x 375 pixels with as much detail as photographs (some are drawn, the others
are links to them), trains ResNet50 on them with examples/resnet/train_with_fleet.py, and prints the
speed that each epoch reported. The first epoch compiles and captures. ``--parts`` measures what
feeds the card by itself, without training: reading, decoding, and both with crops.

python benchmarks/resnet_files.py                              # the card decodes
python benchmarks/resnet_files.py --decoder cpu                # the cores do
python benchmarks/resnet_files.py --cores 4                    # with some of the cores
python benchmarks/resnet_files.py --parts --epochs 0           # no training
python benchmarks/resnet_files.py --compare gpu:16 auto:16 auto:4   # decoder:cores, in one process
"""

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

import fleetx as fleet
from fleetx import applications
from fleetx.data.images import View, train_loader
from fleetx.data.images.card import CardDecoder, decode_jpegs
from fleetx.data.images.dataset import Images
from fleetx.data.images.encoded import EncodedImages
from fleetx.data.images.files import labelled_files

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "resnet" / "train_with_fleet.py"
SIZE = (500, 375)
CLASSES = 1000
FLAGS = ["--fp16=True", "--use_lars=True", "--use_compile=True", "--use_cuda_graph=True"]


def photograph(number: int) -> bytes:
    """A JPEG file of about 60 KB: large forms, edges, and grain."""
    numbers, (width, height) = np.random.default_rng(number), SIZE
    forms = numbers.normal(128, 50, (height // 40, width // 40, 3)).astype(np.float32)
    image = cv2.resize(forms, SIZE, interpolation=cv2.INTER_CUBIC)
    for _ in range(20):
        ends = numbers.integers(0, width, 4).tolist()
        colour = numbers.integers(0, 256, 3).tolist()
        cv2.line(image, tuple(ends[:2]), tuple(ends[2:]), colour, int(numbers.integers(1, 9)))
    noise = numbers.normal(0, 40, (height, width, 3)).astype(np.float32)
    pixels = np.clip(image + cv2.GaussianBlur(noise, (0, 0), 1.0), 0, 255).astype(np.uint8)
    return cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()


def make(folder: Path, count: int, drawn: int) -> None:
    """ImageNet's layout."""
    (folder / "train").mkdir(parents=True)
    with ProcessPoolExecutor() as pool:
        files = list(pool.map(photograph, range(drawn), chunksize=8))
    for number, data in enumerate(files):
        (folder / "train" / f"{number}.jpg").write_bytes(data)
    for number in range(drawn, count):
        os.link(folder / "train" / f"{number % drawn}.jpg", folder / "train" / f"{number}.jpg")
    lines = [f"{number}.jpg {number % CLASSES}\n" for number in range(count)]
    (folder / "train.txt").write_text("".join(lines), encoding="utf-8")
    (folder / "val.txt").write_text("".join(f"train/{line}" for line in lines[:256]))
    size = sum(map(len, files)) / len(files) / 1e3
    print(json.dumps({"files": count, "drawn": drawn, "mean KB": round(size)}), flush=True)


def train(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One run of the script, with its own words about its speed."""
    line = [
        sys.executable,
        "-m",
        "fleetx.launch",
        "--gpus=0",
        f"--log_dir={folder}/log",
        str(SCRIPT),
    ]
    line += [f"--data_dir={folder}", f"--output={folder}/output"]
    line += [f"--batch_size={args.batch}", f"--num_epochs={args.epochs}", *FLAGS]
    line += [f"--class_dim={CLASSES}", "--warm_up_epochs=1", "--export_format=none"]
    line += ["--log_steps=1000", f"--decoder={args.decoder}", *args.flag]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    done = subprocess.run(
        line,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stdout)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "decoder": args.decoder,
        "images/s": [float(found) for found in re.findall(r"([\d.]+) images/s,", done.stdout)],
        "losses": [float(found) for found in re.findall(r"loss: ([\d.]+),", done.stdout)],
        "said": re.findall(r"compiling took.*|decoder='auto'.*", done.stdout),
        "seconds": round(time.perf_counter() - began),
    }


def parts(folder: Path, batch: int) -> None:
    """What it takes by itself: to read, to decode, to decode and cut, and all of it by a loader."""
    device, view = torch.device("cuda", 0), View()
    source = EncodedImages(Images(labelled_files(folder, "train"), view, train=True))
    card = CardDecoder(source, device)
    read = source.__getitems__(range(batch))
    files = read.encoded()

    def say(what: str, work: Callable[[], object], times: int = 20) -> None:
        work()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times):
            work()
        torch.cuda.synchronize()
        print(json.dumps({what: round(times * batch / (time.perf_counter() - began))}), flush=True)

    say("read by one process, images/s", lambda: source.__getitems__(range(batch)), 5)
    say("decoded", lambda: decode_jpegs(files, device))
    say("decoded, cut, normalised", lambda: card.work(read))
    for decoder in ("gpu", "cpu"):
        loader = train_loader(folder, batch, view, decoder=decoder, drop_last=True)
        began, count = time.perf_counter(), 0
        for images, _ in loader:
            count += len(images)
        torch.cuda.synchronize()
        rate = round(count / (time.perf_counter() - began))
        print(json.dumps({f"an epoch of the loader, decoder={decoder}": rate}), flush=True)


def wait() -> None:
    """Until the card has done what it was asked for."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Comparison:
    """The step of the script, fed by one loader after the other, and by images on the device."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        spec = importlib.util.spec_from_file_location("train_with_fleet", SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        sys.argv = [str(SCRIPT), f"--class_dim={CLASSES}", *FLAGS, *args.flag]
        given = script.arguments()
        self.folder, self.batch, self.epochs = folder, args.batch, args.epochs
        self.net: Any = applications.build(given.model, class_dim=CLASSES, width=given.width)
        fleet.init(is_collective=True, strategy=script.strategy_of(given, self.net))
        self.model: Any = fleet.distributed_model(self.net, criterion=self.net.criterion)
        sgd = torch.optim.SGD(self.model.parameters(), given.lr, given.momentum_rate)
        self.optimizer = fleet.distributed_optimizer(sgd)
        self.cores = sorted(os.sched_getaffinity(0))

    def steps(self, batches: Iterable[Any]) -> float:
        """Images per second."""
        wait()
        began, count = time.perf_counter(), 0
        for batch in batches:
            self.model.train_batch(batch)
            count += len(batch[0])
        wait()
        return round(count / (time.perf_counter() - began))

    def synthetic(self) -> None:
        """Nothing is read: the limit."""
        images = torch.randn(self.batch, 3, 224, 224, device=fleet.device())
        labels = torch.randint(0, CLASSES, (self.batch,), device=fleet.device())
        batch = images.contiguous(memory_format=torch.channels_last), labels
        self.steps([batch] * 5)
        print(json.dumps({"synthetic": self.steps([batch] * 50)}), flush=True)

    def loader(self, setting: str) -> Any:
        """As the script makes it; ``decoder:cores`` or ``decoder:cores:processes``."""
        decoder, cores, *processes = setting.split(":")
        os.sched_setaffinity(0, self.cores[: int(cores)])
        readers = int(processes[0]) if processes else None
        return self.net.get_train_dataloader(
            self.folder, self.batch, drop_last=True, decoder=decoder, num_workers=readers
        )

    def files(self, setting: str) -> None:
        """The epochs of a loader."""
        loader = self.loader(setting)
        rates = [self.steps(loader) for _ in range(self.epochs)]
        print(json.dumps({setting: rates}), flush=True)

    def profile(self, setting: str) -> None:
        """What the card and the calls of CUDA do in a few steps, by stream and thread."""
        loader = self.loader(setting)
        self.steps(loader)
        with tempfile.TemporaryDirectory() as scratch:
            batches = iter(loader)
            for _ in range(6):
                self.model.train_batch(next(batches))
            with torch.profiler.profile() as profiler:
                for _ in range(6):
                    self.model.train_batch(next(batches))
                wait()
            profiler.export_chrome_trace(f"{scratch}/trace.json")
            events = json.loads(Path(scratch, "trace.json").read_text())["traceEvents"]
        sums: dict[tuple[str, Any, str], list[float]] = {}
        for event in events:
            if event.get("cat") in {"kernel", "gpu_memcpy", "cuda_runtime", "cuda_driver"}:
                key = event["cat"], event["tid"], event["name"][:60]
                sums.setdefault(key, []).append(event["dur"])
        ranked = sorted(sums.items(), key=lambda item: -sum(item[1]))
        for (kind, where, name), taken in ranked[:60]:
            line = f"{sum(taken) / 6e3:8.2f} ms a step, {len(taken) / 6:6.1f} times"
            print(f"{line}, longest {max(taken) / 1e3:6.2f}: {kind} {where} {name}", flush=True)


def main(given: Iterable[str] | None = None) -> None:
    """Draw, and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=13_000)
    parser.add_argument("--drawn", type=int, default=400, help="files that are not links")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--decoder", default="gpu", choices=["gpu", "cpu", "auto"])
    parser.add_argument("--cores", type=int, help="use no more than these")
    parser.add_argument("--parts", action="store_true", help="measure parts as well")
    parser.add_argument("--compare", nargs="+", help="decoder:cores, for each as many epochs")
    parser.add_argument("--profile", help="decoder:cores, of which to tell where time goes")
    parser.add_argument("--flag", action="append", default=[], help="another one of the script")
    parser.add_argument("--data_dir", type=Path, help="files of an earlier run, or your own")
    args = parser.parse_args(None if given is None else list(given))
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.data_dir or Path(scratch) / "files"
        if not folder.exists():
            make(folder, args.files, min(args.drawn, args.files))
        if args.parts:
            parts(folder, args.batch)
        if args.compare:
            comparison = Comparison(folder, args)
            comparison.synthetic()
            for setting in args.compare:
                comparison.files(setting)
            if args.profile:
                comparison.profile(args.profile)
        elif args.epochs:
            print(json.dumps(train(folder, args)), flush=True)


if __name__ == "__main__":
    main()

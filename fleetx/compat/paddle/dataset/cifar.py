"""``paddle.dataset.cifar``: 3 x 32 x 32 pixels from 0 to 1 in a row, and a class."""

import itertools
import tarfile
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.compat.files import pickles
from fleetx.compat.paddle.dataset import common
from fleetx.compat.paddle.dataset.drawing import pictures

ARCHIVES = {10: "cifar-10-python.tar.gz", 100: "cifar-100-python.tar.gz"}
DRAWN = {"train": 2048, "test": 512}

Reader = Callable[[], Iterable[Any]]


def reader_creator(filename: str | Path, sub_name: str, cycle: bool = False) -> Reader:
    """A reader of the parts of an archive whose names have ``sub_name`` in them."""

    def once() -> Iterator[tuple[np.ndarray, int]]:
        with tarfile.open(filename, "r") as archive:
            for member in archive:
                stream = archive.extractfile(member) if sub_name in member.name else None
                if stream is None:
                    continue
                batch = pickles.read_stream(BytesIO(stream.read()))
                labels = batch.get("labels", batch.get("fine_labels"))
                for image, label in zip(batch["data"], labels, strict=True):
                    yield (image / 255.0).astype("float32"), int(label)

    return _again(once, cycle)


def _again(once: Reader, cycle: bool) -> Reader:
    return (
        (lambda: itertools.chain.from_iterable(once() for _ in itertools.count()))
        if cycle
        else once
    )


def _split(classes: int, name: str, part: str, cycle: bool) -> Reader:
    archive = common.found("cifar", ARCHIVES[classes])
    if archive is not None:
        return reader_creator(archive, part, cycle)
    common.drawn("cifar", f": {DRAWN[name]} pictures of {classes} kinds")

    def once() -> Iterator[tuple[np.ndarray, int]]:
        for image, label in pictures(classes, (3, 32, 32), DRAWN[name], name):
            yield image.reshape(-1), label

    return _again(once, cycle)


def train10(cycle: bool = False) -> Reader:
    """Training set of 10 classes."""
    return _split(10, "train", "data_batch", cycle)


def test10(cycle: bool = False) -> Reader:  # noqa: PT028
    """Test set of 10 classes."""
    return _split(10, "test", "test_batch", cycle)


def train100() -> Reader:
    """Training set of 100 classes."""
    return _split(100, "train", "train", False)


def test100() -> Reader:
    """Test set of 100 classes."""
    return _split(100, "test", "test", False)


def fetch() -> None:
    """Bring the files here, if a mirror has them."""
    for name in ARCHIVES.values():
        common.found("cifar", name)

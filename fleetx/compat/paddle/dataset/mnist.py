"""``paddle.dataset.mnist``: 28 x 28 pixels from -1 to 1 in a row, and a digit."""

import gzip
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from fleetx.compat.paddle.dataset import common
from fleetx.compat.paddle.dataset.drawing import pictures

TRAIN_IMAGE, TRAIN_LABEL = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
TEST_IMAGE, TEST_LABEL = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
DRAWN = {"train": 2048, "test": 512}

Reader = Callable[[], Iterable[Any]]


def reader_creator(image_filename: str, label_filename: str, buffer_size: int = 100) -> Reader:
    """A reader of two files in MNIST's own format."""

    def reader() -> Iterator[tuple[np.ndarray, int]]:
        with gzip.GzipFile(image_filename, "rb") as file:
            magic, count, rows, columns = struct.unpack(">IIII", file.read(16))
            _check(magic, 2051, image_filename)
            images = np.frombuffer(file.read(), np.uint8).reshape(count, rows * columns)
        with gzip.GzipFile(label_filename, "rb") as file:
            magic, _ = struct.unpack(">II", file.read(8))
            _check(magic, 2049, label_filename)
            labels = np.frombuffer(file.read(), np.uint8)
        for image, label in zip(images, labels, strict=True):
            yield image.astype("float32") / 255.0 * 2.0 - 1.0, int(label)

    return reader


def _check(magic: int, wanted: int, name: str) -> None:
    if magic != wanted:
        raise ValueError(f"{name!r} is no file of MNIST: it begins with {magic}, not {wanted}.")


def _split(name: str, images: str, labels: str) -> Reader:
    files = common.found("mnist", images), common.found("mnist", labels)
    if files[0] is not None and files[1] is not None:
        return reader_creator(str(files[0]), str(files[1]), 100)
    common.drawn("mnist", f": {DRAWN[name]} pictures of 10 kinds")

    def reader() -> Iterator[tuple[np.ndarray, int]]:
        for image, label in pictures(10, (1, 28, 28), DRAWN[name], name):
            yield image.reshape(-1) * 2 - 1, label

    return reader


def train() -> Reader:
    """A reader of the training set."""
    return _split("train", TRAIN_IMAGE, TRAIN_LABEL)


def test() -> Reader:
    """A reader of the test set."""
    return _split("test", TEST_IMAGE, TEST_LABEL)


def fetch() -> None:
    """Bring the files here, if a mirror has them."""
    for name in (TRAIN_IMAGE, TRAIN_LABEL, TEST_IMAGE, TEST_LABEL):
        common.found("mnist", name)

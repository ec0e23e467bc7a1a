"""``paddle.dataset.uci_housing``: 13 numbers about a district, and the price of a house there."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np

from fleetx.compat.paddle.dataset import common
from fleetx.compat.paddle.dataset.drawing import rows

FILE = "housing.data"
feature_names = [
    *("CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE", "DIS", "RAD", "TAX"),
    *("PTRATIO", "B", "LSTAT"),
]

Reader = Callable[[], Iterable[Any]]


@cache
def _read(path: str) -> np.ndarray:
    """All rows; numbers less their mean, per their range."""
    data = np.fromfile(path, sep=" ").reshape(-1, 14)
    own = data[:, :13]
    data[:, :13] = (own - own.mean(0)) / (own.max(0) - own.min(0))
    return data


def _split(name: str) -> Reader:
    path = common.found("uci_housing", FILE)
    if path is None:
        common.drawn("uci_housing")
        count = 404 if name == "train" else 102
        return lambda: rows(13, count, name)

    def reader() -> Iterator[tuple[Any, Any]]:
        data = _read(str(path))
        cut = int(len(data) * 0.8)
        for row in data[:cut] if name == "train" else data[cut:]:
            yield row[:-1], row[-1:]

    return reader


def train() -> Reader:
    """A reader of the training set."""
    return _split("train")


def test() -> Reader:
    """A reader of the test set."""
    return _split("test")


def fetch() -> None:
    """Bring the file here, if a mirror has it."""
    common.found("uci_housing", FILE)

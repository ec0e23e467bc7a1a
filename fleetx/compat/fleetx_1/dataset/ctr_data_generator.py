"""``fleetx.dataset.ctr_data_generator``: lines of Criteo's data set."""

import glob
import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fleetx.compat.fleetx_1.dataset.feeding import Loader, grouped
from fleetx.compat.fleetx_1.share import own_files

DENSE, SPARSE = 13, 26
LOWEST = np.array([0, -3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "float32")
LARGEST = np.array([20, 603, 50, 50, 64000, 500, 100, 50, 500, 10, 10, 10, 50], "float32")


def _sample(line: str, dim: int) -> tuple[np.ndarray, list[int], int]:
    fields = line.rstrip("\n").split("\t")
    dense = np.array([float(value or 0) for value in fields[1 : 1 + DENSE]], "float32")
    # The same number in every process, which hash() is not.
    sparse = [
        zlib.crc32(f"{at}{value}".encode()) % dim
        for at, value in enumerate(fields[1 + DENSE : 1 + DENSE + SPARSE])
    ]
    return (dense - LOWEST) / (LARGEST - LOWEST), sparse, int(fields[0])


def get_dataloader(
    inputs: Sequence[Any],
    train_files_path: str,
    sparse_feature_dim: int = 1000001,
    batch_size: int = 1000,
    shuffle: bool = True,
) -> Loader:
    """This worker's share of the files of a folder: 13 numbers, 26 words, and a click or none."""
    found = sorted(glob.glob(os.path.join(train_files_path, "*")))
    files = own_files([name for name in found if os.path.isfile(name)])

    def samples() -> Iterator[tuple[np.ndarray, list[int], int]]:
        for name in files:
            with open(name, encoding="utf-8") as file:
                for line in file:
                    yield _sample(line, sparse_feature_dim)

    def batches() -> Iterator[Sequence[Any]]:
        for group in grouped(samples(), batch_size, shuffle):
            dense = np.stack([sample[0] for sample in group])
            sparse = np.array([sample[1] for sample in group], "int64")
            label = np.array([[sample[2]] for sample in group], "int64")
            yield dense, *(sparse[:, [at]] for at in range(SPARSE)), label

    return Loader(inputs, batches)

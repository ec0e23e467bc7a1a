"""Clicks like those of Criteo, drawn from a model that we know: so we know the best AUC, too."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DENSE, SLOTS = 13, 26
Floats = NDArray[np.float64]


def examples(count: int, seed: int) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Dense features, ids of all slots, and the true probability of a click."""
    chance = np.random.default_rng(seed)
    dense = chance.random((count, DENSE))
    # Few ids are common and most are rare, as in a real log; each slot has ids of its own.
    rank = chance.zipf(1.6, (count, SLOTS)) % 1000
    ids = rank.astype(np.int64) * 1000 + np.arange(SLOTS)
    taste = np.sin(ids * 12.9898) * 43758.5453 % 1 - 0.5  # what each id is worth
    logits = 1.2 * taste.sum(1) + (dense - 0.5) @ np.linspace(-2, 2, DENSE) - 1.0
    return dense, ids, 1 / (1 + np.exp(-logits))


def labelled(count: int, seed: int) -> tuple[Floats, NDArray[np.int64], NDArray[np.bool_]]:
    """Dense features, ids of all slots, and whether there was a click."""
    dense, ids, truth = examples(count, seed)
    return dense, ids, np.random.default_rng(seed + 10**6).random(count) < truth


def lines(count: int, seed: int) -> Iterator[str]:
    """Records as text slots: click, dense features, then 26 slots of one id each."""
    dense, ids, clicks = labelled(count, seed)
    for click, numbers, row in zip(clicks, dense, ids, strict=True):
        slots = " ".join(f"1 {i}" for i in row)
        yield f"1 {int(click)} {DENSE} {' '.join(f'{x:.4f}' for x in numbers)} {slots}\n"


def write(folder: Path, files: int, count: int) -> list[str]:
    """Some files of records; those that are there stay."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{index}-of-{files}-{count}.txt" for index in range(files)]
    for index, path in enumerate(paths):
        if not path.exists():
            # Workers of one machine write the same file at the same time; the last one stays.
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text("".join(lines(count, index)))
            partial.replace(path)
    return [str(path) for path in paths]

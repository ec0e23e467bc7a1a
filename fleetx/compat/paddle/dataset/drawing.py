"""Small data sets that are drawn: the same at every call, and such that a model can learn them."""

import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

Sizes = tuple[int, int, int]


def _numbers(*words: Any) -> np.random.Generator:
    return np.random.default_rng([zlib.crc32(str(word).encode()) for word in words])


@cache
def _kinds(count: int, sizes: Sizes) -> np.ndarray:
    """A picture for each class: a few coarse squares, the same for every split."""
    channels, height, width = sizes
    coarse = _numbers("kinds", count).random((count, channels, 7, 7), dtype="float32")
    rows, columns = np.arange(height) * 7 // height, np.arange(width) * 7 // width
    return coarse[:, :, rows][:, :, :, columns]


def pictures(classes: int, sizes: Sizes, count: int, split: str) -> Iterator[tuple[Any, int]]:
    """Pictures with numbers from 0 to 1, and their classes."""
    chance = _numbers("pictures", classes, split)
    kinds = _kinds(classes, sizes)
    for at in range(count):
        label = int(chance.integers(classes)) if at >= classes else at
        noise = chance.normal(0.0, 0.15, sizes).astype("float32")
        yield np.clip(kinds[label] + noise, 0.0, 1.0), label


def sentences(
    words: int, count: int, split: str, *, labels: int = 2, shortest: int = 8, longest: int = 40
) -> Iterator[tuple[list[int], int]]:
    """Lists of words, more often of one half of the vocabulary or another, and which."""
    chance = _numbers("sentences", words, split)
    for _ in range(count):
        label = int(chance.integers(labels))
        length = int(chance.integers(shortest, longest + 1))
        own = chance.random(length) < 0.6
        part = max(words // labels, 1)
        typical = label * part + chance.integers(0, part, length)
        found = np.where(own, typical, chance.integers(0, words, length))
        yield found.tolist(), label


def chains(words: int, count: int, split: str, *, length: int = 20) -> Iterator[list[int]]:
    """Lists of words in which one follows from the one before, most of the time."""
    chance = _numbers("chains", words, split)
    for _ in range(count):
        found = [int(chance.integers(words))]
        while len(found) < length:
            next_word = (found[-1] * 7 + 3) % words
            random = chance.random() < 0.2
            found.append(int(chance.integers(words)) if random else next_word)
        yield found


def rows(features: int, count: int, split: str) -> Iterator[tuple[Any, Any]]:
    """Numbers, and one that follows from them."""
    slope = _numbers("slope", features).normal(size=features)
    chance = _numbers("rows", features, split)
    for _ in range(count):
        values = chance.uniform(-0.5, 0.5, features)
        price = 22.5 + 8.0 * float(values @ slope) + chance.normal(0, 0.5)
        yield values, np.array([price])


def vocabulary(size: int, *, first: tuple[str, ...] = ()) -> dict[str, int]:
    """Word -> its number."""
    own = [f"word{number}" for number in range(size - len(first))]
    return {word: number for number, word in enumerate([*first, *own])}

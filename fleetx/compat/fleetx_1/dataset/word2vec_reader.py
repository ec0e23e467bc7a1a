"""``fleetx.dataset.word2vec_reader``: pairs of words that are near each other."""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.compat.fleetx_1.dataset.feeding import Loader, grouped
from fleetx.compat.fleetx_1.share import own_files

WINDOW = 5


def _vocabulary(dict_path: str | Path) -> tuple[dict[str, int], np.ndarray]:
    """Words -> numbers, and how often each is drawn when one is guessed wrongly."""
    words: dict[str, int] = {}
    counts: list[float] = []
    for line in Path(dict_path).read_text(encoding="utf-8").splitlines():
        word, _, count = line.strip().partition(" ")
        words[word] = len(words)
        counts.append(float(count or 1))
    chances = np.array(counts) ** 0.75
    return words, chances / chances.sum()


def load_w2v_reader(  # noqa: PLR0917 (the order of FleetX)
    inputs: Sequence[Any],
    file_list: Any,
    dict_path: str | Path = "",
    nce_num: int = 5,
    batch_size: int = 100,
    shuffle: bool = True,
) -> Loader:
    """A word, one near it, and ``nce_num`` others, as numbers of a vocabulary.

    Args:
        inputs: of the model, in that order.
        file_list: text files, or a folder of them; each worker takes its share.
        dict_path: lines of a word and how often it is used.
        nce_num: how many others.
        batch_size: pairs of a batch.
        shuffle: in a random order.
    """
    words, chances = _vocabulary(dict_path)
    given = [file_list] if isinstance(file_list, (str, Path)) else list(file_list)
    listed = [
        name
        for entry in given
        for name in (
            sorted(glob.glob(os.path.join(entry, "*"))) if os.path.isdir(entry) else [str(entry)]
        )
    ]
    files = own_files(listed)

    def pairs() -> Iterator[tuple[int, int]]:
        for name in files:
            with open(name, encoding="utf-8") as file:
                for line in file:
                    known = [words[word] for word in line.split() if word in words]
                    for at, word in enumerate(known):
                        near = known[max(0, at - WINDOW) : at] + known[at + 1 : at + WINDOW + 1]
                        yield from ((word, other) for other in near)

    def batches() -> Iterator[Sequence[Any]]:
        for group in grouped(pairs(), batch_size, shuffle):
            both = np.array(group, "int64")
            others = np.random.choice(len(chances), (len(group), nce_num), p=chances)
            yield both[:, :1], both[:, 1:], others.astype("int64")

    return Loader(inputs, batches)

"""``paddle.dataset.conll05``: semantic roles of words; drawn, since its text is not free."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fleetx.compat.paddle.dataset import common
from fleetx.compat.paddle.dataset.drawing import chains, vocabulary

WORDS, VERBS, LABELS = 44068, 3162, 59
DRAWN = 512

Reader = Callable[[], Iterable[Any]]


def get_dict() -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Words, verbs and labels -> numbers."""
    common.drawn("conll05")
    return vocabulary(WORDS), vocabulary(VERBS), vocabulary(LABELS)


def get_embedding() -> str:
    """The path of a file with a vector for each word, behind 16 bytes of a header."""
    path = Path(common.DATA_HOME) / "conll05st" / "emb"
    if not path.is_file():
        common.drawn("conll05")
        path = Path(tempfile.mkdtemp(prefix="conll05")) / "emb"
        vectors = np.random.default_rng(0).normal(size=(WORDS, 32)).astype("float32")
        path.write_bytes(bytes(16) + vectors.tobytes())
    return str(path)


def test() -> Reader:
    """A reader of words, five words about the verb, the verb, whether it is near, and labels."""
    common.drawn("conll05")

    def reader() -> Iterator[tuple[list[int], ...]]:
        for words in chains(WORDS, DRAWN, "conll05", length=12):
            verb = words[0] % len(words)
            around = [
                [words[min(max(verb + step, 0), len(words) - 1)]] * len(words)
                for step in (-2, -1, 0, 1, 2)
            ]
            near = [int(abs(at - verb) <= 2) for at in range(len(words))]
            labels = [word % LABELS for word in words]
            yield words, *around, [words[verb] % VERBS] * len(words), near, labels

    return reader


train = test

"""``paddle.dataset.wmt14``: sentences of two languages as numbers; drawn."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fleetx.compat.paddle.dataset import common
from fleetx.compat.paddle.dataset.drawing import chains, vocabulary

START, END, UNK, UNK_IDX = "<s>", "<e>", "<unk>", 2
DRAWN = {"train": 2048, "test": 256, "gen": 64}

Reader = Callable[[], Iterable[Any]]


def _split(name: str, dict_size: int) -> Reader:
    common.drawn("wmt14")

    def reader() -> Iterator[tuple[list[int], list[int], list[int]]]:
        for words in chains(dict_size - 3, DRAWN[name], f"wmt14 {name}", length=16):
            here = [word + 3 for word in words]
            yield [0, *here, 1], [0, *here], [*here, 1]

    return reader


def train(dict_size: int) -> Reader:
    """A reader of the training set."""
    return _split("train", dict_size)


def test(dict_size: int) -> Reader:
    """A reader of the test set."""
    return _split("test", dict_size)


def gen(dict_size: int) -> Reader:
    """A reader of a few more sentences."""
    return _split("gen", dict_size)


def get_dict(dict_size: int, reverse: bool = True) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The words of both languages, by number or the other way round."""
    words = vocabulary(dict_size, first=(START, END, UNK))
    found: dict[Any, Any] = {n: w for w, n in words.items()} if reverse else dict(words)
    return found, dict(found)

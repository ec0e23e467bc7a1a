"""``paddle.dataset.imikolov``: words that follow each other in the Penn treebank."""

import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fleetx.compat.paddle.dataset import common
from fleetx.compat.paddle.dataset.drawing import chains, vocabulary

ARCHIVE = "simple-examples.tgz"
WORDS = 2073
DRAWN = {"train": 2048, "valid": 512}

Reader = Callable[[], Iterable[Any]]


class DataType:
    """What a sample is: n words that follow each other, or a sentence and the same one later."""

    NGRAM = 1
    SEQ = 2


def _lines(name: str) -> Iterator[list[str]]:
    path = common.found("imikolov", ARCHIVE)
    assert path is not None
    with tarfile.open(path) as archive:
        stream = archive.extractfile(f"./simple-examples/data/ptb.{name}.txt")
        assert stream is not None
        for line in stream:
            yield line.decode().split()


def build_dict(min_word_freq: int = 50) -> dict[str, int]:
    """The words that come more often -> numbers, the most frequent first."""
    if common.found("imikolov", ARCHIVE) is None:
        common.drawn("imikolov")
        return {**vocabulary(WORDS - 1, first=("<s>", "<e>")), "<unk>": WORDS - 1}
    counts: Counter[str] = Counter()
    for name in ("train", "valid"):
        for words in _lines(name):
            counts.update(["<s>", *words, "<e>"])
    counts.pop("<unk>", None)
    kept = sorted(
        ((w, n) for w, n in counts.items() if n > min_word_freq), key=lambda p: (-p[1], p[0])
    )
    found = {word: number for number, (word, _) in enumerate(kept)}
    found["<unk>"] = len(found)
    return found


def _numbered(name: str, word_idx: dict[str, int]) -> Iterator[list[int]]:
    first, last, unknown = (word_idx.get(w, 0) for w in ("<s>", "<e>", "<unk>"))
    if common.found("imikolov", ARCHIVE) is None:
        common.drawn("imikolov")
        for words in chains(len(word_idx), DRAWN[name], f"imikolov {name}"):
            yield [first, *words, last]
        return
    for line in _lines(name):
        yield [first, *(word_idx.get(word, unknown) for word in line), last]


def _split(name: str, word_idx: dict[str, int], n: int, data_type: int) -> Reader:
    if data_type not in {DataType.NGRAM, DataType.SEQ}:
        raise ValueError(f"imikolov: data_type={data_type!r} is DataType.NGRAM or DataType.SEQ.")

    def reader() -> Iterator[tuple[Any, ...]]:
        for words in _numbered(name, word_idx):
            if data_type == DataType.NGRAM:
                for end in range(n, len(words) + 1):
                    yield tuple(words[end - n : end])
            elif n <= 0 or len(words) - 1 <= n:
                yield words[:-1], words[1:]

    return reader


def train(word_idx: dict[str, int], n: int, data_type: int = DataType.NGRAM) -> Reader:
    """A reader of the training set."""
    return _split("train", word_idx, n, data_type)


def test(
    word_idx: dict[str, int],
    n: int,
    data_type: int = DataType.NGRAM,  # noqa: PT028
) -> Reader:
    """A reader of the validation set."""
    return _split("valid", word_idx, n, data_type)


def fetch() -> None:
    """Bring the file here, if a mirror has it."""
    common.found("imikolov", ARCHIVE)

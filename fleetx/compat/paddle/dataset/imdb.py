"""``paddle.dataset.imdb``: words of a review as numbers, and 0 where it likes the film."""

import re
import string
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fleetx.compat.paddle.dataset import common
from fleetx.compat.paddle.dataset.drawing import sentences, vocabulary

ARCHIVE = "aclImdb_v1.tar.gz"
WORDS = 5147
DRAWN = {"train": 2048, "test": 512}
_MARKS = bytes.maketrans(b"", b""), string.punctuation.encode()

Reader = Callable[[], Iterable[Any]]


def tokenize(pattern: re.Pattern[str]) -> Iterator[list[bytes]]:
    """The words of each review whose name in the archive fits."""
    path = common.found("imdb", ARCHIVE)
    if path is None:
        raise FileNotFoundError(f"{ARCHIVE} is not in {common.DATA_HOME}/imdb; put it there.")
    with tarfile.open(path) as archive:
        for member in archive:
            stream = archive.extractfile(member) if pattern.match(member.name) else None
            if stream is not None:
                text = stream.read().rstrip(b"\n\r").translate(*_MARKS)
                yield text.lower().split()


def build_dict(pattern: re.Pattern[str], cutoff: int) -> dict[bytes, int]:
    """The words that come more than ``cutoff`` times -> numbers, the most frequent first."""
    counts = Counter(word for words in tokenize(pattern) for word in words)
    kept = sorted(((w, n) for w, n in counts.items() if n > cutoff), key=lambda p: (-p[1], p[0]))
    found = {word: number for number, (word, _) in enumerate(kept)}
    found[b"<unk>"] = len(found)
    return found


def word_dict() -> dict[Any, int]:
    """Word -> number."""
    if common.found("imdb", ARCHIVE) is None:
        common.drawn("imdb")
        words = vocabulary(WORDS - 1)
        return {**words, "<unk>": WORDS - 1}
    pattern = re.compile(r"aclImdb/((train)|(test))/((pos)|(neg))/.*\.txt$")
    return dict(build_dict(pattern, 150))


def _split(name: str, word_idx: dict[Any, int]) -> Reader:
    if common.found("imdb", ARCHIVE) is None:
        common.drawn("imdb")
        return lambda: sentences(len(word_idx), DRAWN[name], f"imdb {name}")
    unknown = word_idx.get(b"<unk>", word_idx.get("<unk>", len(word_idx) - 1))

    def reader() -> Iterator[tuple[list[int], int]]:
        for label, kind in enumerate(("pos", "neg")):
            for words in tokenize(re.compile(rf"aclImdb/{name}/{kind}/.*\.txt$")):
                yield [word_idx.get(word, unknown) for word in words], label

    return reader


def train(word_idx: dict[Any, int]) -> Reader:
    """A reader of the training set."""
    return _split("train", word_idx)


def test(word_idx: dict[Any, int]) -> Reader:
    """A reader of the test set."""
    return _split("test", word_idx)


def fetch() -> None:
    """Bring the file here, if a mirror has it."""
    common.found("imdb", ARCHIVE)

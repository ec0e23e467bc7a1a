"""``paddle.dataset.wmt16``: sentences of English and German as numbers, the second one twice."""

import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fleetx.compat.paddle.dataset import common
from fleetx.compat.paddle.dataset.drawing import chains, vocabulary

ARCHIVE = "wmt16.tar.gz"
START_MARK, END_MARK, UNK_MARK = "<s>", "<e>", "<unk>"
MARKS = (START_MARK, END_MARK, UNK_MARK)
TOTAL_EN_WORDS, TOTAL_DE_WORDS = 11250, 19220
DRAWN = {"train": 2048, "val": 256, "test": 256}

Reader = Callable[[], Iterable[Any]]


def _lines(name: str) -> Iterator[tuple[list[str], list[str]]]:
    path = common.found("wmt16", ARCHIVE)
    assert path is not None
    with tarfile.open(path) as archive:
        stream = archive.extractfile(f"wmt16/{name}")
        assert stream is not None
        for line in stream:
            parts = line.decode().strip().split("\t")
            if len(parts) == 2:
                yield parts[0].split(), parts[1].split()


def get_dict(lang: str, dict_size: int, reverse: bool = False) -> dict[Any, Any]:
    """Word -> number, or the other way round."""
    if lang not in {"en", "de"}:
        raise ValueError(f"wmt16: lang={lang!r} is 'en' or 'de'.")
    size = min(dict_size, TOTAL_EN_WORDS if lang == "en" else TOTAL_DE_WORDS)
    if common.found("wmt16", ARCHIVE) is None:
        common.drawn("wmt16")
        words = vocabulary(size, first=MARKS)
    else:
        column = 0 if lang == "en" else 1
        counts = Counter(word for pair in _lines("train") for word in pair[column])
        kept = [word for word, _ in counts.most_common(size - len(MARKS))]
        words = {word: number for number, word in enumerate([*MARKS, *kept])}
    return {number: word for word, number in words.items()} if reverse else dict(words)


def _split(name: str, sizes: tuple[int, int], src_lang: str) -> Reader:
    if src_lang not in {"en", "de"}:
        raise ValueError(f"wmt16: src_lang={src_lang!r} is 'en' or 'de'.")
    limits = TOTAL_EN_WORDS, TOTAL_DE_WORDS
    limits = limits if src_lang == "en" else limits[::-1]
    own, other = (min(size, limit) for size, limit in zip(sizes, limits, strict=True))

    def drawn() -> Iterator[tuple[list[int], list[int], list[int]]]:
        for words in chains(own - 3, DRAWN[name], f"wmt16 {name}", length=16):
            there = [3 + word % (other - 3) for word in words]
            yield [0, *(word + 3 for word in words), 1], [0, *there], [*there, 1]

    def read() -> Iterator[tuple[list[int], list[int], list[int]]]:
        lang = "de" if src_lang == "en" else "en"
        source, target = get_dict(src_lang, own), get_dict(lang, other)
        for pair in _lines(name):
            here, there = pair if src_lang == "en" else pair[::-1]
            numbers = [target.get(word, 2) for word in there]
            yield [0, *(source.get(word, 2) for word in here), 1], [0, *numbers], [*numbers, 1]

    if common.found("wmt16", ARCHIVE) is None:
        common.drawn("wmt16")
        return drawn
    return read


def train(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Reader:
    """A reader of the training set."""
    return _split("train", (src_dict_size, trg_dict_size), src_lang)


def test(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Reader:  # noqa: PT028
    """A reader of the test set."""
    return _split("test", (src_dict_size, trg_dict_size), src_lang)


def validation(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Reader:
    """A reader of the validation set."""
    return _split("val", (src_dict_size, trg_dict_size), src_lang)


def fetch() -> None:
    """Bring the file here, if a mirror has it."""
    common.found("wmt16", ARCHIVE)

"""Text files whose words are numbers already: a text a line, or two with a tab between them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


class TokenLines:
    """All texts of a file, in one array that the processes of a loader share.

    Args:
        file: lines of numbers between spaces.
        parts: 1, or 2 for pairs of texts with a tab between them.
        vocab_size: every number must be smaller.
        max_seq_len: what is longer is cut.
    """

    def __init__(self, file: Path, *, parts: int, vocab_size: int, max_seq_len: int) -> None:
        if not file.is_file():
            raise FileNotFoundError(
                f"there is no {str(file)!r}; write a text as numbers between spaces on each line"
                + (", source and target with a tab between them." if parts == 2 else ".")
            )
        texts = [
            text
            for number, line in enumerate(_lines(file), 1)
            for text in _texts(line, parts, vocab_size, f"{file}, line {number}")
        ]
        if not texts:
            raise ValueError(f"{str(file)!r} has no text; write at least one line of numbers.")
        cut = [text[:max_seq_len] for text in texts]
        self._parts = parts
        self._tokens = np.concatenate(cut)
        self._ends = np.cumsum([0, *(len(text) for text in cut)])

    def __len__(self) -> int:
        return (len(self._ends) - 1) // self._parts

    def __getitem__(self, index: int) -> list[Tokens]:
        first = index * self._parts
        spans = zip(
            self._ends[first : first + self._parts],
            self._ends[first + 1 : first + self._parts + 1],
            strict=True,
        )
        return [self._tokens[start:end] for start, end in spans]

    def lengths(self) -> Tokens:
        """Of each line, the longer of its texts."""
        found: Tokens = np.diff(self._ends).reshape(-1, self._parts).max(axis=1)
        return found


def _lines(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8") as lines:
        yield from (line for line in lines if line.strip())


def _texts(line: str, parts: int, vocab_size: int, place: str) -> list[Tokens]:
    found = line.rstrip("\n").split("\t")
    if len(found) != parts:
        raise ValueError(f"{place} has {len(found)} text(s) between tabs; write {parts}.")
    try:
        texts = [np.array(text.split(), np.int64) for text in found]
    except ValueError:
        raise ValueError(
            f"{place} has words that are no numbers; turn the text into numbers of your "
            "vocabulary first."
        ) from None
    for text in texts:
        if not len(text) or text.min() < 0 or text.max() >= vocab_size:
            raise ValueError(
                f"{place}: every number must be from 0 to {vocab_size - 1}, and there must be "
                "one; set vocab_size to that of the data."
            )
    return texts

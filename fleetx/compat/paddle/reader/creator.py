"""``paddle.reader.creator``: readers over arrays and files."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any


def np_array(x: Any) -> Callable[[], Iterable[Any]]:
    """A reader of the rows of an array."""
    return lambda: iter(x)


def text_file(path: str) -> Callable[[], Iterable[str]]:
    """A reader of the lines of a file."""

    def lines() -> Iterator[str]:
        with open(path, encoding="utf-8") as file:
            for line in file:
                yield line.rstrip("\n")

    return lines

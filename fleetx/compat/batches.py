"""``paddle.batch``: a function there, which a module of that name would hide."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

Reader = Callable[[], Iterable[Any]]


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Reader:
    """A reader of lists of samples, from a reader of samples."""
    size = int(batch_size)
    if size <= 0:
        raise ValueError(f"batch_size should be a positive integer value, but got {batch_size}")

    def batch_reader() -> Iterator[list[Any]]:
        samples = iter(reader())
        while group := list(islice(samples, size)):
            if len(group) == size or not drop_last:
                yield group

    return batch_reader

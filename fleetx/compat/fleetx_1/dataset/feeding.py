"""Loaders of FleetX 1: feeds by the names of a model's inputs, in a loop or called."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fleetx.compat.loaders import Feed
from fleetx.compat.running import fed
from fleetx.static.record.program import program_of


class Loader:
    """Feeds of a model; ``batches`` gives the values of its inputs in their order."""

    def __init__(
        self, inputs: Sequence[Any], batches: Callable[[], Iterable[Sequence[Any]]]
    ) -> None:
        self._inputs, self._batches = list(inputs), batches

    def __iter__(self) -> Iterator[Any]:
        program = program_of(self._inputs[0])
        names = [variable.name for variable in self._inputs]
        for batch in self._batches():
            yield Feed(fed(program, dict(zip(names, batch, strict=True))))

    def __call__(self) -> Iterator[Any]:
        """The same, for loops that call their loader."""
        return iter(self)

    def reset(self) -> None:
        """Every loop begins anew."""


def padded(rows: Sequence[Sequence[int]], padding: int = 0) -> np.ndarray:
    """Rows as long as the longest."""
    longest = max(len(row) for row in rows)
    return np.array([[*row, *[padding] * (longest - len(row))] for row in rows], "int64")


def grouped(samples: Iterable[Any], size: int, shuffle: bool = False) -> Iterator[list[Any]]:
    """So many samples at a time, perhaps in a random order within 100 batches."""
    held: list[Any] = []
    for sample in samples:
        held.append(sample)
        if len(held) == size * (100 if shuffle else 1):
            yield from _cut(held, size, shuffle)
            held = []
    yield from _cut(held, size, shuffle)


def _cut(held: list[Any], size: int, shuffle: bool) -> Iterator[list[Any]]:
    order = np.random.permutation(len(held)) if shuffle else np.arange(len(held))
    for begin in range(0, len(held), size):
        yield [held[at] for at in order[begin : begin + size]]

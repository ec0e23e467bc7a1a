"""Parameters and buffers as shapes and number formats, whole or in parts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

import torch


@dataclass(frozen=True)
class Piece:
    """A parameter or a buffer, or the part of it that a rank holds."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool = True

    @cached_property
    def numbers(self) -> int:
        """How many numbers it has."""
        return prod(self.shape)

    @cached_property
    def size(self) -> int:
        """In bytes."""
        return self.numbers * self.dtype.itemsize

    @lru_cache(maxsize=4096)  # noqa: B019  (of a few shapes; a model has many parameters of each)
    def cut(self, dim: int, parts: int, part: int) -> "Piece":
        """One part of it, where torch deals a dimension out to ranks."""
        if not self.shape:
            return self
        longest = -(-self.shape[dim] // parts)
        length = min(longest, max(0, self.shape[dim] - part * longest))
        return replace(self, shape=(*self.shape[:dim], length, *self.shape[dim + 1 :]))

    @lru_cache(maxsize=4096)  # noqa: B019
    def padded(self, parts: int) -> "Piece":
        """With as many rows as all ranks have together when each has as many as the first."""
        if not self.shape:
            return replace(self, shape=(parts,))
        rows = -(-self.shape[0] // parts) * parts
        return replace(self, shape=(rows, *self.shape[1:]))


Pieces = Mapping[str, Piece]
"""By their first names."""


def size_of(pieces: Pieces, *, trained: bool = False) -> int:
    """In bytes, all of them or those alone that are trained."""
    return sum(piece.size for piece in pieces.values() if piece.trained or not trained)

"""Shapes as Paddle gives them: lists, where torch has tuples."""

from typing import Any

import torch
from typing_extensions import override


def _alike(mine: Any, given: Any) -> bool:
    if isinstance(mine, torch.SymInt) and isinstance(given, int):
        return given == -1  # and no other number: asking would fix the size
    return bool(mine == given)


class Sizes(list[Any]):
    """A shape: a list, as in Paddle, that also meets the tuples of torch."""

    @override
    def __add__(self, other: Any) -> "Sizes":
        return Sizes([*self, *other])

    def __radd__(self, other: Any) -> "Sizes":
        return Sizes([*other, *self])

    @override
    def __getitem__(self, at: Any) -> Any:
        found = list(self)[at]
        return Sizes(found) if isinstance(at, slice) else found

    @override
    def __eq__(self, other: object) -> bool:
        """The same sizes; -1 stands for one that comes with the data."""
        if not isinstance(other, (list, tuple)) or len(self) != len(other):
            return False
        return all(_alike(mine, given) for mine, given in zip(self, other, strict=True))

    @override
    def __contains__(self, size: object) -> bool:
        return any(_alike(mine, size) for mine in self)

    @override
    def __repr__(self) -> str:
        return repr([-1 if isinstance(size, torch.SymInt) else size for size in self])

    @override
    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def numel(self) -> Any:
        """How many numbers there are."""
        return torch.Size(self).numel()


class CalledSizes(Sizes):
    """The sizes of a ``LoDTensor``, which scripts call, and read as well."""

    def __call__(self) -> list[int]:
        """Themselves."""
        return list(self)

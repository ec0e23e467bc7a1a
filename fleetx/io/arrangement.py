"""A tensor that lies in several others, and reading a part of it straight from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fleetx.comm.shares import Share

Read = Callable[[str, Share], Tensor]
"""Reads a part of a stored tensor."""


@dataclass(frozen=True)
class Piece:
    """A stored tensor as a block of another."""

    name: str
    begin: tuple[int, ...]
    """Where it begins in the whole."""
    shape: tuple[int, ...]
    """What it covers of the whole."""
    added: tuple[int, ...] = ()
    """Dimensions of the whole, each of size 1 here, that the stored tensor does not have."""

    def meets(self, share: Share) -> Share | None:
        """What of this block lies in a share of the whole; None if nothing does."""
        ends = [begin + size for begin, size in zip(self.begin, self.shape, strict=True)]
        found = tuple(
            slice(max(part.start, begin), min(part.stop, end))
            for part, begin, end in zip(share, self.begin, ends, strict=True)
        )
        return found if all(part.start < part.stop for part in found) else None

    def read(self, read: Read, part: Share) -> Tensor:
        """The numbers of a part of the whole that lies in this block."""
        moved = [slice(p.start - b, p.stop - b) for p, b in zip(part, self.begin, strict=True)]
        found = read(self.name, tuple(p for at, p in enumerate(moved) if at not in self.added))
        for at in self.added:  # from the first to the last, so that each is where it belongs
            found = found.unsqueeze(at)
        return found


@dataclass(frozen=True)
class Arrangement:
    """A whole tensor made of stored ones."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, name: str, shape: Sequence[int]) -> "Arrangement":
        """A tensor that is stored as it is."""
        return cls(tuple(shape), (Piece(name, (0,) * len(shape), tuple(shape)),))

    def read(self, read: Read, share: Share) -> Tensor:
        """A part of the whole; nothing else is read."""
        if len(self.pieces) == 1:
            return self.pieces[0].read(read, share)
        found: Tensor | None = None
        for piece in self.pieces:
            part = piece.meets(share)
            if part is None:
                continue
            numbers = piece.read(read, part)
            if found is None:
                found = numbers.new_empty([s.stop - s.start for s in share])
            here = zip(part, share, strict=True)
            found[tuple(slice(p.start - s.start, p.stop - s.start) for p, s in here)] = numbers
        return torch.empty([s.stop - s.start for s in share]) if found is None else found


def stacked(parts: Sequence[Arrangement], dim: int) -> Arrangement:
    """Tensors of one shape along a new dimension, as ``torch.stack`` puts them."""
    _check_alike([part.shape for part in parts])
    dim %= len(parts[0].shape) + 1
    return joined([_with_dimension(part, dim) for part in parts], dim)


def joined(parts: Sequence[Arrangement], dim: int) -> Arrangement:
    """Tensors one after the other along a dimension, as ``torch.cat`` puts them."""
    dim %= len(parts[0].shape)
    _check_alike([(*part.shape[:dim], *part.shape[dim + 1 :]) for part in parts])
    pieces, at = list[Piece](), 0
    for part in parts:
        pieces += [replace(one, begin=_shifted(one.begin, dim, at)) for one in part.pieces]
        at += part.shape[dim]
    first = parts[0].shape
    return Arrangement((*first[:dim], at, *first[dim + 1 :]), tuple(pieces))


def _check_alike(shapes: Sequence[tuple[int, ...]]) -> None:
    if len(set(shapes)) > 1:
        raise ValueError(f"their shapes differ: {sorted(map(list, set(shapes)))}")


def _shifted(begin: tuple[int, ...], dim: int, by: int) -> tuple[int, ...]:
    return (*begin[:dim], begin[dim] + by, *begin[dim + 1 :])


def _with_dimension(part: Arrangement, dim: int) -> Arrangement:
    def widened(sizes: tuple[int, ...], size: int) -> tuple[int, ...]:
        return (*sizes[:dim], size, *sizes[dim:])

    pieces = tuple(
        Piece(
            one.name,
            widened(one.begin, 0),
            widened(one.shape, 1),
            tuple(sorted([dim, *(at + (at >= dim) for at in one.added)])),
        )
        for one in part.pieces
    )
    return Arrangement(widened(part.shape, 1), pieces)

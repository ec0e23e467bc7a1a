"""Ways from the rows of a batch to what a layer returns, and from its gradients back to the rows.

They run outside of autograd, which sees a layer's result as a leaf: its own embeddings take ten
times as long on the way back on processors, and a function in Python costs it more than the work.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fleetx.ps import kernels
from fleetx.ps.hashing import Floats


class Way(Protocol):
    """What a layer does with rows that are all different."""

    def forth(self, rows: Tensor) -> Tensor:
        """The result, in memory of its own or that of the rows."""

    def back(self, gradient: Tensor) -> Tensor:
        """The gradient of each row, from that of the result."""


@dataclass(frozen=True)
class AllInOrder:
    """Rows as they are."""

    def forth(self, rows: Tensor) -> Tensor:
        """The rows."""
        return rows

    def back(self, gradient: Tensor) -> Tensor:
        """The gradient."""
        return gradient


@dataclass(frozen=True)
class Picked:
    """``rows[places]``, of so many rows."""

    places: Tensor
    count: int

    def forth(self, rows: Tensor) -> Tensor:
        """A row for each place."""
        if not _plain(rows):
            return rows.index_select(0, self.places)
        found = rows.new_empty(len(self.places), rows.shape[1])
        kernels.active.pick(_array(rows), self.places.numpy(), found.numpy())
        return found

    def back(self, gradient: Tensor) -> Tensor:
        """The sum over the places of each row."""
        return summed(gradient, self.places, self.count)


@dataclass(frozen=True)
class Pooled:
    """The sum of ``rows[places]`` in each of so many bags, or their mean."""

    places: Tensor
    count: int
    bags: Tensor
    number: int
    mean: bool = False

    def forth(self, rows: Tensor) -> Tensor:
        """A row for each bag."""
        pooled = summed_from(rows, self.places, self.bags, self.number)
        return pooled / self._sizes() if self.mean else pooled

    def back(self, gradient: Tensor) -> Tensor:
        """The sum over the bags of each row."""
        shares = gradient / self._sizes() if self.mean else gradient
        return summed_from(shares, self.bags, self.places, self.count)

    def _sizes(self) -> Tensor:
        return torch.bincount(self.bags, minlength=self.number).clamp(min=1)[:, None]


def summed(rows: Tensor, targets: Tensor, count: int) -> Tensor:
    """The sum of the rows of each target."""
    total = rows.new_zeros(count, rows.shape[1])
    if _plain(rows):
        kernels.active.sum_rows(_array(rows), targets.numpy(), total.numpy())
        return total
    return total.index_add_(0, targets, rows)


def summed_from(rows: Tensor, sources: Tensor, targets: Tensor, count: int) -> Tensor:
    """The sum of ``rows[sources]`` of each target."""
    if not _plain(rows):
        return summed(rows.index_select(0, sources), targets, count)
    total = rows.new_zeros(count, rows.shape[1])
    kernels.active.pool_rows(_array(rows), sources.numpy(), targets.numpy(), total.numpy())
    return total


def _plain(rows: Tensor) -> bool:
    return rows.is_cpu and rows.dtype == torch.float32


def _array(rows: Tensor) -> Floats:
    array: Floats = np.ascontiguousarray(rows.detach().numpy())
    return array


def bags_of(shape: torch.Size, offsets: Tensor | None, device: torch.device) -> tuple[Tensor, int]:
    """The bag of each id and the number of bags: rows of a rectangle, or between offsets."""
    if len(shape) != (2 if offsets is None else 1):
        raise ValueError(
            f"ids of shape {list(shape)} {'without' if offsets is None else 'with'} offsets "
            "make no bags; pass a rectangle with one bag in each row, or a flat list and offsets"
        )
    if offsets is None:
        return _bags_of_rows(*shape, device), shape[0]
    sizes = offsets.diff(append=offsets.new_tensor([shape[0]]))
    if int(sizes.sum()) != shape[0] or bool((sizes < 0).any()):
        raise ValueError(
            f"offsets must begin with 0, rise, and end before the {shape[0]} ids; they are "
            f"{offsets.tolist()[:8]}"
        )
    bags = torch.arange(len(offsets), device=device)
    return bags.repeat_interleave(sizes.to(device)), len(offsets)


@lru_cache(maxsize=4)
def _bags_of_rows(rows: int, columns: int, device: torch.device) -> Tensor:
    """The bag of each id of a rectangle; most batches have the shape of the last one."""
    return torch.arange(rows, device=device).repeat_interleave(columns)

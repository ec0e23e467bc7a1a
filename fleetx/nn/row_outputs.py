"""Ways from the rows of a batch to what a layer returns, and from its gradient back to the rows.

They run outside of autograd, which sees a layer's result as a leaf: its own embeddings take ten
times as long on the way back on processors, and a function in Python costs it more than the work.
"""

from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fleetx.ps.tables import kernels
from fleetx.ps.wire.arrays import Floats, Ids
from fleetx.ps.worker.row_gradients import array_of


class RowOutput(Protocol):
    """What a layer does with rows that are all different."""

    def forward(self, rows: Floats) -> Tensor:
        """The result, in memory of its own or that of the rows."""

    def backward(self, gradient: Tensor) -> Floats:
        """The gradient of each row, from that of the result."""


class InOrder:
    """Rows as they are."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def forward(self, rows: Floats) -> Tensor:
        """The rows."""
        return _moved(rows, self._device)

    def backward(self, gradient: Tensor) -> Floats:
        """The gradient."""
        return array_of(gradient)


class Indexed:
    """``rows[places]``, of so many rows."""

    def __init__(self, places: Ids, count: int, device: torch.device) -> None:
        self._places, self._count, self._device = places, count, device

    def forward(self, rows: Floats) -> Tensor:
        """A row for each place."""
        if self._device.type != "cpu":
            places = _moved(self._places, self._device)
            return _moved(rows, self._device).index_select(0, places)
        found = np.empty((len(self._places), rows.shape[1]), np.float32)
        kernels.active.pick(rows, self._places, found)
        return torch.from_numpy(found)

    def backward(self, gradient: Tensor) -> Floats:
        """The sum over the places of each row."""
        if gradient.is_cpu:
            total = np.zeros((self._count, gradient.shape[1]), np.float32)
            kernels.active.sum_rows(array_of(gradient), self._places, total)
            return total
        return array_of(_summed(gradient, self._places, self._count))


class Pooled:
    """The sum of ``rows[places]`` in each of so many bags, or their mean.

    A mean is that of the rows which are not padding, as in ``torch.nn.EmbeddingBag``.
    """

    def __init__(
        self,
        places: Ids,
        count: int,
        bags: tuple[Ids, int],
        device: torch.device,
        *,
        mean: bool = False,
        padding: int | None = None,
    ) -> None:
        """Describe the bags.

        Args:
            places: where the row of each id is.
            count: how many rows there are.
            bags: the bag of each id, and how many there are.
            device: of the result.
            mean: instead of the sum.
            padding: where the row is that stands for nothing.
        """
        self._places, self._count, self._device = places, count, device
        self._bags, self._number = bags
        self._mean, self._padding = mean, padding

    def forward(self, rows: Floats) -> Tensor:
        """A row for each bag."""
        if self._device.type == "cpu":
            found = self._pooled(rows, self._places, self._bags, self._number)
            pooled = torch.from_numpy(found)
        else:
            each = _moved(rows, self._device)
            chosen = each.index_select(0, _moved(self._places, self._device))
            pooled = _summed(chosen, self._bags, self._number)
        return pooled / self._sizes() if self._mean else pooled

    def backward(self, gradient: Tensor) -> Floats:
        """The sum over the bags of each row."""
        shares = gradient / self._sizes() if self._mean else gradient
        if shares.is_cpu:
            return self._pooled(array_of(shares), self._bags, self._places, self._count)
        chosen = shares.index_select(0, _moved(self._bags, self._device))
        return array_of(_summed(chosen, self._places, self._count))

    @staticmethod
    def _pooled(rows: Floats, sources: Ids, targets: Ids, count: int) -> Floats:
        total = np.zeros((count, rows.shape[1]), np.float32)
        kernels.active.pool_rows(rows, sources, targets, total)
        return total

    def _sizes(self) -> Tensor:
        bags = self._bags
        if self._padding is not None:
            bags = bags[self._places != self._padding]
        sizes = np.maximum(np.bincount(bags, minlength=self._number), 1)
        return _moved(sizes, self._device)[:, None]


def _moved(array: Floats | Ids, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device)


def _summed(rows: Tensor, targets: Ids, count: int) -> Tensor:
    """The sum of the rows of each target, where kernels do not reach."""
    total = rows.new_zeros(count, rows.shape[1])
    return total.index_add_(0, _moved(targets, rows.device), rows)


def bags_of(shape: torch.Size, offsets: Tensor | None) -> tuple[Ids, int]:
    """The bag of each id and the number of bags: rows of a rectangle, or between offsets."""
    if len(shape) != (2 if offsets is None else 1):
        raise ValueError(
            f"ids of shape {list(shape)} {'without' if offsets is None else 'with'} offsets "
            "make no bags; pass a rectangle with one bag in each row, or a flat list and offsets"
        )
    if offsets is None:
        return _bags_of_rows(*shape), shape[0]
    if offsets.dim() != 1 or offsets.is_floating_point() or offsets.dtype == torch.bool:
        raise ValueError(
            f"offsets must be whole numbers in a row, one for each bag; got {offsets.dtype} of "
            f"shape {list(offsets.shape)}"
        )
    begins = offsets.detach().cpu().numpy()
    sizes = np.diff(begins, append=shape[0])
    if int(sizes.sum()) != shape[0] or bool((sizes < 0).any()):
        raise ValueError(
            f"offsets must begin with 0, rise, and end before the {shape[0]} ids; they are "
            f"{begins.tolist()[:8]}"
        )
    return np.repeat(np.arange(len(begins)), sizes), len(begins)


@lru_cache(maxsize=4)
def _bags_of_rows(rows: int, columns: int) -> Ids:
    """The bag of each id of a rectangle; most batches have the shape of the last one."""
    return np.repeat(np.arange(rows), columns)

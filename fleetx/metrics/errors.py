"""Mean errors over the predictions of all workers."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fleetx.metrics.counting import Counting
from fleetx.metrics.given import pair
from fleetx.metrics.totals import number, ratio, total


class MAE(Counting):
    """The mean absolute error; workers add their sums up when they are asked."""

    def __init__(self) -> None:
        self.reset()

    @override
    def reset(self) -> None:
        """Begin anew."""
        self.amount, self.count = 0.0, 0

    @torch.no_grad()
    def update(self, predictions: Any, targets: Any) -> None:
        """Count a batch of numbers, as tensors, arrays or lists; the two have the same shape."""
        found, true = pair(predictions=predictions, targets=targets)
        if found.shape != true.shape:
            raise ValueError(
                f"predictions of shape {list(found.shape)} and targets of shape "
                f"{list(true.shape)} cannot be compared; reshape one of them."
            )
        difference = found.double() - true.double()
        self.amount += float(self._error(difference).sum())
        self.count += difference.numel()

    def local(self) -> float:
        """Of this worker's predictions."""
        return self._mean(self.amount, self.count)

    def compute(self) -> float:
        """Of all workers' predictions; all of them must ask."""
        return self._mean(*total([self.amount, self.count]))

    @override
    def _kept(self) -> dict[str, Any]:
        return {"amount": self.amount, "count": self.count}

    @override
    def _add(self, kept: Mapping[str, Any]) -> None:
        self.amount += kept["amount"]
        self.count += kept["count"]

    def _error(self, difference: Tensor) -> Tensor:
        return difference.abs()

    def _mean(self, amount: float, count: float) -> float:
        return ratio(amount, count)


class MSE(MAE):
    """The mean squared error."""

    @override
    def _error(self, difference: Tensor) -> Tensor:
        return difference.square()


class RMSE(MSE):
    """The root of the mean squared error."""

    @override
    def _mean(self, amount: float, count: float) -> float:
        return math.sqrt(ratio(amount, count))


def mae(abserr: Any, total_ins_num: Any) -> float:
    """The mean absolute error, from each worker's sum and count."""
    return ratio(*total([number(abserr, "abserr"), number(total_ins_num, "total_ins_num")]))


def mse(sqrerr: Any, total_ins_num: Any) -> float:
    """The mean squared error, from each worker's sum and count."""
    return ratio(*total([number(sqrerr, "sqrerr"), number(total_ins_num, "total_ins_num")]))


def rmse(sqrerr: Any, total_ins_num: Any) -> float:
    """The root of the mean squared error, from each worker's sum and count."""
    return math.sqrt(mse(sqrerr, total_ins_num))

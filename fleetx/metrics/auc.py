"""The area under the curve over the predictions of all workers, from two histograms."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fleetx.roles import identity, started
from fleetx.roles.collectives import util

Counts = NDArray[np.int64]


class AUC:
    """Counts predictions; workers add their counts up when they are asked."""

    def __init__(self, bins: int = 4096) -> None:
        if bins < 2:
            raise ValueError(f"AUC(bins={bins}) cannot tell predictions apart; pass 2 or more")
        self._bins = bins
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.positive: Counts = np.zeros(self._bins, np.int64)
        self.negative: Counts = np.zeros(self._bins, np.int64)

    @torch.no_grad()
    def update(self, predictions: Tensor, labels: Tensor) -> None:
        """Count a batch: probabilities between 0 and 1, and what was true."""
        values = predictions.detach().reshape(-1).float().cpu()
        if values.numel() and not bool(((values >= 0) & (values <= 1)).all()):
            raise ValueError("predictions are not between 0 and 1; pass probabilities (sigmoid)")
        bins = (values * (self._bins - 1)).round().long().numpy()
        true = labels.detach().reshape(-1).cpu().numpy() > 0.5
        self.positive += np.bincount(bins[true], minlength=self._bins)
        self.negative += np.bincount(bins[~true], minlength=self._bins)

    def local(self) -> float:
        """Of this worker's predictions."""
        return area(self.positive, self.negative)

    def compute(self) -> float:
        """Of all workers' predictions; all of them must ask."""
        return auc(self.positive, self.negative)


def auc(stat_pos: Any, stat_neg: Any) -> float:
    """The area, from each worker's histograms of positive and negative examples."""
    both = np.stack([np.asarray(stat_pos, np.int64), np.asarray(stat_neg, np.int64)])
    if started() and identity().worker_num > 1:
        both = util.all_reduce(both)
    return area(both[0], both[1])


def area(positive: Counts, negative: Counts) -> float:
    """How often a positive example is above a negative one; equal ones count half."""
    pairs = float(positive.sum()) * float(negative.sum())
    if pairs == 0:
        return 0.5
    below = np.cumsum(negative) - negative
    return float((positive * (below + negative / 2)).sum() / pairs)

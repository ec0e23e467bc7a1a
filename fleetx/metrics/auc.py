"""The area under the curve over the predictions of all workers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from fleetx.metrics.counting import Counting
from fleetx.metrics.given import check_lengths, pair
from fleetx.metrics.tally import Counts, Tally
from fleetx.metrics.totals import counts, expect_whole
from fleetx.roles import identity, started
from fleetx.roles.worker_util import util


class AUC(Counting):
    """Counts predictions; workers put their counts together when they are asked.

    Args:
        limit: how many different predictions of all workers together are told apart exactly. Of
            more, those that agree in their leading digits count as equal; memory stays bounded.
    """

    def __init__(self, limit: int = 1 << 20) -> None:
        expect_whole("AUC", "limit", limit)
        if limit < 2:
            raise ValueError(f"AUC(limit={limit}) cannot tell predictions apart; pass 2 or more")
        self._limit = limit
        self.reset()

    @override
    def reset(self) -> None:
        """Begin anew."""
        self._tally = Tally(self._limit)

    @torch.no_grad()
    def update(self, predictions: Any, labels: Any) -> None:
        """Count a batch of tensors, arrays or lists.

        Args:
            predictions: probabilities of class 1 between 0 and 1, as a vector, a column, or the
                second of two columns.
            labels: 0 or 1.
        """
        given, true = pair(predictions=predictions, labels=labels)
        check_lengths(given, true)
        if given.dim() > 2 or (given.dim() == 2 and given.shape[1] > 2):
            raise ValueError(
                f"predictions of shape {list(given.shape)} are of more than two classes, and the "
                "area is that of class 1 against class 0; pass the probabilities of one class"
            )
        values = (given[:, -1] if given.dim() == 2 else given).cpu().double()
        if values.numel() and not bool(((values >= 0) & (values <= 1)).all()):
            raise ValueError("predictions are not between 0 and 1; pass probabilities (sigmoid)")
        true = true.reshape(-1).cpu()
        if not bool(((true == 0) | (true == 1)).all()):
            raise ValueError("some labels are neither 0 nor 1; pass labels == c for a class c")
        self._tally.add(values.numpy(), (true == 1).numpy())

    def local(self) -> float:
        """Of this worker's predictions."""
        return area(*self._tally.counts)

    def compute(self) -> float:
        """Of all workers' predictions; all of them must ask."""
        if not (started() and identity().worker_num > 1):
            return self.local()
        sizes = util.all_gather(len(self._tally))
        share = self._limit if sum(sizes) <= self._limit else self._limit // len(sizes)
        every = Tally(self._limit)
        for packed in util.all_gather(self._tally.packed(max(share, 1))):
            every.add_packed(packed)
        return area(*every.counts)

    @override
    def _kept(self) -> dict[str, Any]:
        return {"tally": torch.from_numpy(self._tally.packed(self._limit))}

    @override
    def _add(self, kept: Mapping[str, Any]) -> None:
        self._tally.add_packed(kept["tally"].numpy())


def auc(stat_pos: Any, stat_neg: Any) -> float:
    """The area, from each worker's histograms of positive and negative examples."""
    positive, negative = (
        counts(stat_pos, "stat_pos", np.int64),
        counts(stat_neg, "stat_neg", np.int64),
    )
    if positive.shape != negative.shape or not positive.ndim:
        raise ValueError(
            f"auc() takes two histograms with the same bins; stat_pos has the shape "
            f"{list(positive.shape)} and stat_neg {list(negative.shape)}"
        )
    both = np.stack([positive, negative])
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

"""How often the right class is among the first k, over the predictions of all workers."""

from typing import Any

import torch
from torch import Tensor

from fleetx.metrics.totals import expect_tensors, expect_whole, number, ratio, total


class Accuracy:
    """Counts right answers; workers add their counts up when they are asked.

    Args:
        topk: an answer is right when its class has one of the ``topk`` highest scores.
        ignore_label: entries of this label are not counted; loaders give it to what fills the
            last batch.
    """

    def __init__(self, topk: int = 1, *, ignore_label: int = -1) -> None:
        expect_whole("Accuracy", "topk", topk)
        if topk < 1:
            raise ValueError(f"Accuracy(topk={topk}) is never right; pass 1 or more")
        self._topk, self._ignored = topk, ignore_label
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        # On the device of the scores: a batch that is counted does not wait for it.
        self._counts: Tensor | None = None

    @torch.no_grad()
    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Count a batch: a row of scores for each label, or a vector of the classes themselves."""
        expect_tensors("Accuracy.update", scores=scores, labels=labels)
        labels = labels.detach().reshape(-1)
        if scores.dim() == 1:
            if self._topk > 1:
                raise ValueError(
                    f"Accuracy(topk={self._topk}) needs the scores of all classes; pass a matrix"
                )
            found = scores.detach().reshape(-1, 1)
        else:
            found = scores.detach().topk(min(self._topk, scores.shape[1]), dim=1).indices
        if len(found) != len(labels):
            raise ValueError(f"there are {len(found)} predictions for {len(labels)} labels")
        counted = labels != self._ignored
        right = ((found == labels[:, None]).any(dim=1) & counted).sum()
        counts = torch.stack((right, counted.sum()))
        self._counts = counts if self._counts is None else self._counts + counts

    @property
    def counts(self) -> tuple[int, int]:
        """Right answers and all answers of this worker."""
        if self._counts is None:
            return 0, 0
        right, every = self._counts.tolist()
        return right, every

    def local(self) -> float:
        """Of this worker's predictions."""
        return ratio(*self.counts)

    def compute(self) -> float:
        """Of all workers' predictions; all of them must ask."""
        return acc(*self.counts)


def acc(correct: Any, total_num: Any) -> float:
    """The share that is correct, from each worker's counts."""
    right, every = total([number(correct, "correct"), number(total_num, "total_num")])
    return ratio(right, every)

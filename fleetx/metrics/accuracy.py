"""How often the right class is among the first k, over the predictions of all workers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fleetx.metrics.counting import Counting
from fleetx.metrics.given import check_lengths, is_whole, pair
from fleetx.metrics.totals import expect_whole, number, ratio, total


class Accuracy(Counting):
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

    @override
    def reset(self) -> None:
        """Begin anew."""
        # On the device of the scores: a batch that is counted does not wait for it.
        self._counts: Tensor | None = None
        self._classes = 0

    @torch.no_grad()
    def update(self, scores: Any, labels: Any) -> None:
        """Count a batch of tensors, arrays or lists.

        Args:
            scores: a row of scores for each label; or a vector (or column), of classes, or of the
                probabilities of class 1 where labels are 0 and 1.
            labels: the right classes.
        """
        given, true = pair(scores=scores, labels=labels)
        check_lengths(given, true, "scores")
        true = true.reshape(-1)
        if not is_whole(true):
            raise ValueError(
                "labels are not whole, so they name no classes; pass the number of each class, or "
                "use MAE or RMSE for numbers that are predicted"
            )
        if given.dim() > 2:
            raise ValueError(
                f"scores of shape {list(given.shape)} do not say which dimension the classes are; "
                "pass a matrix with a row for each label: scores.flatten(0, -2) where they are last"
            )
        counted = true != self._ignored
        found, strange = self._answers(given, true, counted)
        right = ((found == true[:, None]).any(dim=1) & counted).sum()
        self._put(torch.stack((right, counted.sum(), strange)))

    def _put(self, counts: Tensor) -> None:
        # Those of a checkpoint are on the host.
        known = None if self._counts is None else self._counts.to(counts.device)
        self._counts = counts if known is None else known + counts

    @override
    def _told(self) -> str:
        return f"Accuracy(topk={self._topk}, ignore_label={self._ignored})"

    @override
    def _kept(self) -> dict[str, Any]:
        counts = [0, 0, 0] if self._counts is None else self._counts.tolist()
        return {"counts": torch.tensor(counts), "classes": self._classes}

    @override
    def _add(self, kept: Mapping[str, Any]) -> None:
        self._classes = max(self._classes, kept["classes"])
        self._put(kept["counts"].clone())

    def _answers(self, given: Tensor, true: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
        """The classes that would be right, and how many labels are no class."""
        if given.dim() == 2 and given.shape[1] > 1:
            self._classes = given.shape[1]
            strange = (((true < 0) | (true >= self._classes)) & counted).sum()
            return given.topk(min(self._topk, self._classes), dim=1).indices, strange
        if self._topk > 1:
            raise ValueError(
                f"Accuracy(topk={self._topk}) needs the scores of all classes; pass a matrix"
            )
        vector = given.reshape(-1)
        if vector.is_floating_point() and not is_whole(vector):
            vector = _likely(vector, true[counted])
        return vector[:, None], counted.new_zeros((), dtype=torch.int64)

    @property
    def counts(self) -> tuple[int, int]:
        """Right answers and all answers of this worker."""
        if self._counts is None:
            return 0, 0
        right, every, strange = self._counts.tolist()
        if strange:  # asked here, where we wait for the device anyway
            raise ValueError(
                f"{strange} labels are none of the classes 0 to {self._classes - 1} that have "
                "scores; number classes from 0, or name the label that does not count: "
                "Accuracy(ignore_label=...)"
            )
        return right, every

    def local(self) -> float:
        """Of this worker's predictions."""
        return ratio(*self.counts)

    def compute(self) -> float:
        """Of all workers' predictions; all of them must ask."""
        return acc(*self.counts)


def _likely(chances: Tensor, labels: Tensor) -> Tensor:
    """1 where class 1 is more likely than class 0."""
    if not bool(((chances >= 0) & (chances <= 1)).all()):
        raise ValueError(
            "a vector of scores is neither classes nor probabilities between 0 and 1; pass "
            "probabilities (sigmoid), or a matrix with the scores of all classes"
        )
    if not bool(((labels == 0) | (labels == 1)).all()):
        raise ValueError(
            "a vector of probabilities is that of class 1, and some labels are neither 0 nor 1; "
            "pass a matrix with the scores of all classes"
        )
    return (chances > 0.5).long()


def acc(correct: Any, total_num: Any) -> float:
    """The share that is correct, from each worker's counts."""
    right, every = total([number(correct, "correct"), number(total_num, "total_num")])
    return ratio(right, every)

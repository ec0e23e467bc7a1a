"""``paddle.fluid.metrics``: counts that a script gathers over the batches of a test."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

Array = NDArray[Any]


def _number(value: Any) -> float:
    """A number, or an array of one."""
    return float(np.asarray(value, dtype=np.float64).reshape(-1)[0])


class MetricBase:
    """What all of them have; ``reset`` begins anew."""

    def __init__(self, name: str | None = None) -> None:
        self._name = name or type(self).__name__

    @override
    def __str__(self) -> str:
        """The name that it was given."""
        return self._name

    def reset(self) -> None:
        """Begin anew."""
        name = self._name
        vars(self).clear()
        type(self).__init__(self, name)

    def get_config(self) -> dict[str, Any]:
        """Its counts by name."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}


class Accuracy(MetricBase):
    """The mean of accuracies, weighed by the sizes of their batches."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.value, self.weight = 0.0, 0.0

    def update(self, value: Any, weight: Any) -> None:
        """Add the accuracy of a batch and the number of its samples."""
        if _number(weight) < 0:
            raise ValueError(f"a batch of {weight} samples: the weight is a number from 0 on.")
        self.value += _number(value) * _number(weight)
        self.weight += _number(weight)

    def eval(self) -> float:
        """The accuracy of all samples so far."""
        if self.weight == 0:
            raise ValueError(
                "Accuracy.eval() was called before any update(), so there is nothing to divide "
                "by; call update(value, weight) for each batch first."
            )
        return self.value / self.weight


class _Ratio(MetricBase):
    """Right ones of those that count."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.tp, self.others = 0, 0

    def eval(self) -> float:
        """The share so far; 0 before anything counts."""
        total = self.tp + self.others
        return self.tp / total if total else 0.0


class Precision(_Ratio):
    """Of those that were called positive, the share that is."""

    def update(self, preds: Any, labels: Any) -> None:
        """Add probabilities of the positive class and labels of 0 and 1."""
        called, truth = _binary(preds, labels)
        self.tp += int((called & truth).sum())
        self.others += int((called & ~truth).sum())


class Recall(_Ratio):
    """Of those that are positive, the share that was called so."""

    def update(self, preds: Any, labels: Any) -> None:
        """Add probabilities of the positive class and labels of 0 and 1."""
        called, truth = _binary(preds, labels)
        self.tp += int((called & truth).sum())
        self.others += int((~called & truth).sum())


def _binary(preds: Any, labels: Any) -> tuple[Array, Array]:
    called = np.rint(np.asarray(preds)).astype("int64").reshape(-1) == 1
    return called, np.asarray(labels).reshape(-1) == 1


class Auc(MetricBase):
    """The area under the ROC curve, of probabilities put into equal boxes."""

    def __init__(
        self, name: str | None = None, curve: str = "ROC", num_thresholds: int = 4095
    ) -> None:
        super().__init__(name)
        if curve != "ROC":
            raise ValueError(f"Auc(curve={curve!r}) is not computed here; take curve='ROC'.")
        self._boxes = num_thresholds + 1
        self._positive, self._negative = np.zeros(self._boxes), np.zeros(self._boxes)

    def update(self, preds: Any, labels: Any) -> None:
        """Add probabilities of shape [n, 2] (or of the positive class) and labels."""
        given = np.asarray(preds, dtype=np.float64)
        chance = given[:, -1] if given.ndim > 1 else given
        box = np.clip((chance * (self._boxes - 1)).astype(int), 0, self._boxes - 1)
        truth = np.asarray(labels).reshape(-1) > 0
        np.add.at(self._positive, box[truth], 1)
        np.add.at(self._negative, box[~truth], 1)

    def eval(self) -> float:
        """The area so far; 0 while one class is missing."""
        right, wrong = self._positive[::-1].cumsum(), self._negative[::-1].cumsum()
        if right[-1] == 0 or wrong[-1] == 0:
            return 0.0
        heights = np.concatenate([[0.0], right])
        widths = np.diff(np.concatenate([[0.0], wrong]))
        area = (widths * (heights[1:] + heights[:-1]) / 2).sum()
        return float(area / right[-1] / wrong[-1])


class CompositeMetric(MetricBase):
    """Several that are updated together."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self._metrics: list[Any] = []

    def add_metric(self, metric: MetricBase) -> None:
        """Let one more take part."""
        self._metrics.append(metric)

    def update(self, preds: Any, labels: Any) -> None:
        """Hand a batch to each."""
        for metric in self._metrics:
            metric.update(preds, labels)

    def eval(self) -> Sequence[float]:
        """What each says."""
        return [metric.eval() for metric in self._metrics]


class ChunkEvaluator(MetricBase):
    """How many pieces of texts were found, by the counts of ``fluid.layers.chunk_eval``."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.num_infer_chunks = self.num_label_chunks = self.num_correct_chunks = 0

    def update(self, num_infer_chunks: Any, num_label_chunks: Any, num_correct_chunks: Any) -> None:
        """Add the counts of a batch: found, there, and both."""
        self.num_infer_chunks += int(np.asarray(num_infer_chunks).item())
        self.num_label_chunks += int(np.asarray(num_label_chunks).item())
        self.num_correct_chunks += int(np.asarray(num_correct_chunks).item())

    def eval(self) -> tuple[float, float, float]:
        """Precision, recall and their harmonic mean so far; 0 of nothing."""
        right = self.num_correct_chunks
        precision = right / self.num_infer_chunks if self.num_infer_chunks else 0.0
        recall = right / self.num_label_chunks if self.num_label_chunks else 0.0
        mean = 2 * precision * recall / (precision + recall) if right else 0.0
        return precision, recall, mean


class EditDistance(MetricBase):
    """The mean distance of texts, and the share of those that are not right."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.total_distance, self.seq_num, self.instance_error = 0.0, 0, 0

    def update(self, distances: Any, seq_num: Any) -> None:
        """Add what ``fluid.layers.edit_distance`` found in a batch."""
        found = np.asarray(distances)
        self.seq_num += int(np.asarray(seq_num).item())
        self.total_distance += float(found.sum())
        self.instance_error += int((found != 0).sum())

    def eval(self) -> tuple[float, float]:
        """Both so far."""
        if self.seq_num == 0:
            raise ValueError("EditDistance.eval() was called before update(); call update() first.")
        return self.total_distance / self.seq_num, self.instance_error / self.seq_num

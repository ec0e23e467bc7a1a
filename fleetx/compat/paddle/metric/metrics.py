"""``paddle.metric.metrics``: how good predictions are."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

import numpy as np
import torch
from typing_extensions import override

from fleetx.compat.labels import check_labels
from fleetx.compat.recorded import rebind
from fleetx.compat.tensors import op


@op
def accuracy(
    input: Any,
    label: Any,
    k: int = 1,
    correct: Any = None,
    total: Any = None,
    name: str | None = None,
) -> Any:
    """The share of samples whose label is among the k highest scores."""
    check_labels(input, label)
    labels = label if label.dim() == input.dim() else torch.unsqueeze(label, -1)
    best = torch.topk(input, k, dim=-1)[1]
    hits = torch.any(torch.eq(best, labels), -1).to(torch.float32)
    if correct is not None:
        rebind(correct, torch.reshape(torch.sum(hits), (1,)).to(correct.dtype))
    if total is not None:
        rebind(total, torch.reshape(torch.sum(torch.ones_like(hits)), (1,)).to(total.dtype))
    return torch.reshape(torch.mean(hits), (1,))


def _numbers(value: Any) -> Any:
    return value.detach().cpu().float().numpy() if isinstance(value, torch.Tensor) else value


class Metric:
    """Something that is counted over batches."""

    def reset(self) -> None:
        """Begin anew."""
        raise NotImplementedError

    def update(self, *args: Any) -> Any:
        """Count a batch."""
        raise NotImplementedError

    def accumulate(self) -> Any:
        """What was counted so far."""
        raise NotImplementedError

    def name(self) -> Any:
        """What it is called."""
        raise NotImplementedError

    def compute(self, *args: Any) -> Any:
        """What ``update`` takes, of predictions and labels."""
        return args


class Accuracy(Metric):
    """The share of samples whose label is among the highest scores."""

    def __init__(self, topk: Any = (1,), name: str | None = None) -> None:
        self.topk = (topk,) if isinstance(topk, int) else tuple(topk)
        self._name = name or "acc"
        self.reset()

    @override
    def compute(self, pred: Any, label: Any, *args: Any) -> Any:
        """Which of the highest scores hit, as 0 and 1."""
        best = torch.topk(pred, max(self.topk), dim=-1)[1]
        if label.dim() == 1 or label.size(-1) == 1:
            wanted = torch.reshape(label, (*best.size()[:-1], 1))
        else:
            wanted = torch.argmax(label, -1, keepdim=True)
        return torch.eq(best, wanted).to(torch.float32)

    @override
    def update(self, correct: Any, *args: Any) -> Any:
        """Count a batch; returns its own share."""
        hits = np.asarray(_numbers(correct))
        shares = []
        for at, k in enumerate(self.topk):
            right, number = hits[..., :k].sum(), int(np.prod(hits.shape[:-1]))
            shares.append(float(right) / number)
            self.total[at] += float(right)
            self.count[at] += number
        return shares[0] if len(shares) == 1 else shares

    @override
    def reset(self) -> None:
        """Begin anew."""
        self.total, self.count = [0.0] * len(self.topk), [0] * len(self.topk)

    @override
    def accumulate(self) -> Any:
        """The share so far."""
        found = [t / c if c else 0.0 for t, c in zip(self.total, self.count, strict=True)]
        return found[0] if len(found) == 1 else found

    @override
    def name(self) -> Any:
        """What it is called."""
        if len(self.topk) == 1:
            return [self._name]
        return [f"{self._name}_top{k}" for k in self.topk]


class Precision(Metric):
    """The share of what was said to be true that is."""

    def __init__(self, name: str = "precision") -> None:
        self._name = name
        self.reset()

    @override
    def update(self, preds: Any, labels: Any) -> None:
        """Count a batch of probabilities and 0 or 1."""
        said = np.floor(np.asarray(_numbers(preds)).reshape(-1) + 0.5).astype(int) == 1
        true = np.asarray(_numbers(labels)).reshape(-1).astype(int) == 1
        self.tp += int((said & true).sum())
        self._other(said, true)

    def _other(self, said: Any, true: Any) -> None:
        self.fp += int((said & ~true).sum())

    @override
    def reset(self) -> None:
        """Begin anew."""
        self.tp = self.fp = 0

    @override
    def accumulate(self) -> float:
        """The share so far."""
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0

    @override
    def name(self) -> str:
        """What it is called."""
        return self._name


class Recall(Precision):
    """The share of what is true that was said to be."""

    def __init__(self, name: str = "recall") -> None:
        super().__init__(name)

    @override
    def _other(self, said: Any, true: Any) -> None:
        self.fn += int((~said & true).sum())

    @override
    def reset(self) -> None:
        """Begin anew."""
        self.tp = self.fn = 0

    @override
    def accumulate(self) -> float:
        """The share so far."""
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0


class Auc(Metric):
    """The area under the ROC curve, by buckets."""

    def __init__(self, curve: str = "ROC", num_thresholds: int = 4095, name: str = "auc") -> None:
        if curve != "ROC":
            raise ValueError(f"Auc(curve={curve!r}) is not here; 'ROC'.")
        self._num_thresholds, self._name = num_thresholds, name
        self.reset()

    @override
    def update(self, preds: Any, labels: Any) -> None:
        """Count a batch of probabilities [n, 2] or [n, 1], and 0 or 1."""
        scores = np.asarray(_numbers(preds))
        chance = scores[:, -1] if scores.ndim > 1 else scores
        at = (chance * self._num_thresholds).astype(int).clip(0, self._num_thresholds)
        # A label may count clicks, so all but 0 are positive.
        true = np.asarray(_numbers(labels)).reshape(-1).astype(int).astype(bool).astype(int)
        np.add.at(self._pos, at, true)
        np.add.at(self._neg, at, 1 - true)

    @override
    def accumulate(self) -> float:
        """The area so far."""
        pos, neg = self._pos[::-1].cumsum(), self._neg[::-1].cumsum()
        if not pos[-1] or not neg[-1]:
            return 0.0
        before = np.concatenate([[0], pos[:-1]])
        area = (self._neg[::-1] * (pos + before)).sum() / 2
        return float(area / (pos[-1] * neg[-1]))

    @override
    def reset(self) -> None:
        """Begin anew."""
        self._pos = np.zeros(self._num_thresholds + 1)
        self._neg = np.zeros(self._num_thresholds + 1)

    @override
    def name(self) -> str:
        """What it is called."""
        return self._name

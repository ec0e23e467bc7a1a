"""Metrics as variables: accuracy of a batch, area under the curve over all batches so far."""

from typing import Any

import torch
from torch import Tensor, fx, nn
from typing_extensions import override

from fleetx.record.variable import Variable, as_variable
from fleetx.static.layers.parameters import layer
from fleetx.torch_internals import assert_soon


def accuracy(input: Tensor, label: Tensor, k: int = 1) -> Variable:
    """The share of samples whose label is among the ``k`` highest scores."""
    label = label if label.dim() == input.dim() else label.unsqueeze(-1)
    best = input.topk(k, dim=-1).indices
    return as_variable((best == label).any(-1).float().mean(), "accuracy()")


def auc(
    input: Tensor, label: Tensor, num_thresholds: int = 4095, name: str | None = None
) -> tuple[Variable, Variable, list[Variable]]:
    """The area under the ROC curve of predictions of class 1.

    A run with other labels, or with scores that are no probabilities, stops and says so.

    Args:
        input: probabilities, [N], [N, 1] or [N, 2] with that of class 1 in the last column.
        label: 0 or 1, [N] or [N, 1].
        num_thresholds: buckets into which probabilities are sorted.
        name: of the buckets.

    Returns:
        The area over all batches of this worker, the area of this batch, and the buckets: of
        positive and of negative samples of this batch, then of all batches. Sums of the latter
        over workers give the area of the whole job.
    """
    if input.dim() > 2 or (input.dim() == 2 and input.shape[1] > 2):
        raise ValueError(
            f"auc() got scores of shape {list(input.shape)}, which are of more than two classes, "
            "and the area is that of class 1 against class 0; pass the probabilities of one class"
        )
    module = layer("auc", lambda: Buckets(num_thresholds + 1), name=name)
    found = [as_variable(part, "auc()") for part in module(input, label)]
    batch, total = (as_variable(area(*found[at : at + 2]), "auc()") for at in (0, 2))
    return total, batch, found


@torch.library.custom_op("fleetx::positive_ones", mutates_args=())
def positive_ones(score: Tensor, label: Tensor) -> Tensor:
    """Which samples are of class 1; refuses what an area cannot be computed of.

    One operator, so that whatever needs the answer needs the refusal, too.
    """
    if len(score) != len(label):
        raise ValueError(
            f"auc() got {len(score)} scores and {len(label)} labels; give one label for each score"
        )
    found = label == 1
    for right, words in (
        ((found | (label == 0)).all(), _NO_LABEL),
        (((score >= 0) & (score <= 1)).all(), _NO_CHANCE),
    ):
        if not right.is_cpu:
            assert_soon(right, words)  # a card is not waited for
        elif not right:
            raise ValueError(words)
    return found


@positive_ones.register_fake
def _(score: Tensor, label: Tensor) -> Tensor:
    return torch.empty_like(label, dtype=torch.bool)


def without_refusals(graph: fx.Graph) -> None:
    """Exchange that operator for one that plain torch knows, in a program that is exported."""
    for node in graph.nodes:
        if node.target is torch.ops.fleetx.positive_ones.default:
            node.target, node.args = torch.ops.aten.eq.Scalar, (node.args[1], 1)


_NO_LABEL = (
    "auc() got labels that are neither 0 nor 1, which would be counted as parts of samples; give "
    "(label > 0) where they are numbers of clicks, label == c for a class c, and leave samples "
    "without a label out"
)
_NO_CHANCE = (
    "auc() got scores that are not between 0 and 1, all of which would be counted as equal; give "
    "probabilities, such as torch.sigmoid(scores) of logits"
)


class Buckets(nn.Module):
    """Counts of samples by probability.

    They are no buffers: each worker counts its own samples, and buffers are made equal.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.positive, self.negative = torch.zeros(count), torch.zeros(count)

    def reset_parameters(self) -> None:
        """Begin to count anew."""
        self.positive.zero_()
        self.negative.zero_()

    @override
    def _apply(self, fn: Any, recurse: bool = True) -> "Buckets":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.positive, self.negative = fn(self.positive), fn(self.negative)
        return self

    @override
    def forward(self, input: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with torch.no_grad():
            score = (input[:, -1] if input.dim() > 1 else input).detach()
            ones = positive_ones(score, label.reshape(-1)).float()
            at = (score * (self.count - 1)).long().clamp(0, self.count - 1)
            empty = torch.zeros_like(self.positive)
            positive = empty.index_add(0, at, ones)
            negative = empty.index_add(0, at, 1 - ones)
            self.positive.add_(positive)
            self.negative.add_(negative)
            return positive, negative, self.positive.clone(), self.negative.clone()


def area(positive: Tensor, negative: Tensor) -> Tensor:
    """The area under the curve that buckets describe; a half when one class is missing."""
    with torch.no_grad():
        # From the highest bucket down: each adds a trapezium over the negatives it brings.
        above = positive.flip(0).cumsum(0)
        before = above - positive.flip(0)
        total = (negative.flip(0) * (above + before)).sum() / 2
        both = positive.sum() * negative.sum()
        return torch.where(both > 0, total / both.clamp(min=1), torch.full_like(both, 0.5))

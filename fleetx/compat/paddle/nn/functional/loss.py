"""``paddle.nn.functional.loss``: losses, whose mean or sum has the shape [1]."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat.labels import check_alike, check_labels
from fleetx.compat.paddle.nn.functional.comparisons import (
    cosine_embedding_loss,
    hinge_embedding_loss,
    multi_label_soft_margin_loss,
    multi_margin_loss,
    npair_loss,
    soft_margin_loss,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from fleetx.compat.paddle.nn.functional.reductions import reduced
from fleetx.compat.recorded import agreed
from fleetx.compat.tensors import at_least_1d, op

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosine_embedding_loss",
    "cross_entropy",
    "ctc_loss",
    "dice_loss",
    "gaussian_nll_loss",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "log_loss",
    "margin_ranking_loss",
    "mse_loss",
    "multi_label_soft_margin_loss",
    "multi_margin_loss",
    "nll_loss",
    "npair_loss",
    "poisson_nll_loss",
    "sigmoid_focal_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax_with_cross_entropy",
    "square_error_cost",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]


def _hard(logits: Any, label: Any, axis: int, ignore_index: int) -> tuple[Any, Any, Any]:
    """Losses of labels, shaped as labels with the axis kept; which count; the labels."""
    check_labels(logits, label, axis)
    whole = label.dim() == logits.dim()
    index = (label if whole else torch.unsqueeze(label, axis)).to(torch.int64)
    index = agreed(logits, index, behind=1 if axis in {-1, logits.dim() - 1} else 0)
    counts = torch.ne(index, ignore_index)
    safe = torch.where(counts, index, torch.zeros_like(index))
    loss = -torch.gather(logits, axis, safe)
    # Zeros of the logits' sizes: a run of a program with fewer labels than rows fails here.
    zeros = torch.zeros_like(torch.narrow(logits, axis, 0, 1))
    return torch.where(counts, loss, zeros), counts, safe


@op
def softmax_with_cross_entropy(
    logits: Any,
    label: Any,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Any:
    """Losses of logits, with the axis of classes kept at size 1; and the probabilities."""
    logs = torch.log_softmax(logits, axis)
    if soft_label:
        check_labels(logits, label, axis, soft=True)
        loss = -torch.sum(logs * label, axis, keepdim=True)
    else:
        loss = _hard(logs, label, axis, ignore_index)[0]
    return (loss, torch.exp(logs)) if return_softmax else loss


@op
def cross_entropy(
    input: Any,
    label: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    soft_label: bool = False,
    axis: int = -1,
    use_softmax: bool = True,
    label_smoothing: float = 0.0,
    name: str | None = None,
) -> Any:
    """The loss of logits, or of probabilities (``use_softmax=False``), by labels."""
    logs = torch.log_softmax(input, axis) if use_softmax else torch.log(input)
    if label.is_floating_point() and input.dim() == label.dim():
        soft_label = soft_label or 1 < input.size(axis) == label.size(axis)
    if label_smoothing:
        label, soft_label = _smooth(input, label, label_smoothing, soft_label, axis), True
    if soft_label:
        return _soft(logs, label, weight, reduction, axis)
    loss, counts, safe = _hard(logs, label, axis, ignore_index)
    scale = counts.to(loss.dtype)
    if weight is not None:
        scale = scale * F.embedding(safe, torch.reshape(weight, (-1, 1)))[..., 0]
        loss = loss * scale
    if reduction == "mean":
        total = torch.sum(scale)
        # Paddle's mean of no label at all is 0.
        return at_least_1d(torch.sum(loss) / torch.where(total == 0, torch.ones_like(total), total))
    found = reduced(loss, reduction)
    kept = label.dim() == input.dim() or reduction != "none"
    return found if kept else torch.squeeze(found, axis)


def _smooth(input: Any, label: Any, amount: float, soft: bool, axis: int) -> Any:
    """Labels that give a share to every class."""
    classes = input.size(axis)
    if not soft:
        check_labels(input, label, axis)
        flat = torch.squeeze(label, axis) if label.dim() == input.dim() else label
        label = torch.movedim(F.one_hot(flat.to(torch.int64), classes), -1, axis)
    return label.to(input.dtype) * (1 - amount) + amount / classes


def _soft(logs: Any, label: Any, weight: Any, reduction: str, axis: int) -> Any:
    check_labels(logs, label, axis, soft=True)
    loss = -torch.sum(logs * label, axis, keepdim=True)
    if weight is None:
        return reduced(loss, reduction)
    sizes = [1] * logs.dim()
    sizes[axis] = -1
    scale = torch.sum(label * torch.reshape(weight, sizes), axis, keepdim=True)
    if reduction == "mean":
        return at_least_1d(torch.sum(loss * scale) / torch.sum(scale))
    return reduced(loss * scale, reduction)


@op
def nll_loss(
    input: Any,
    label: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    name: str | None = None,
) -> Any:
    """The loss of logarithms of probabilities, [N, classes, …] by [N, …]."""
    return at_least_1d(
        F.nll_loss(
            input,
            label.to(torch.int64),
            weight,
            ignore_index=ignore_index,
            reduction=reduction,
        )
    )


@op
def mse_loss(input: Any, label: Any, reduction: str = "mean", name: str | None = None) -> Any:
    """Squares of differences."""
    return reduced(torch.square(input - label), reduction)


@op
def square_error_cost(input: Any, label: Any) -> Any:
    """Squares of differences, each."""
    return torch.square(input - label)


@op
def l1_loss(input: Any, label: Any, reduction: str = "mean", name: str | None = None) -> Any:
    """Sizes of differences."""
    return reduced(torch.abs(input - label), reduction)


@op
def smooth_l1_loss(
    input: Any, label: Any, reduction: str = "mean", delta: float = 1.0, name: str | None = None
) -> Any:
    """Squares of small differences, sizes of large ones."""
    check_alike(input, label)
    return reduced(F.huber_loss(input, label, reduction="none", delta=delta), reduction)


@op
def log_loss(input: Any, label: Any, epsilon: float = 1e-4, name: str | None = None) -> Any:
    """The loss of a probability by 0 or 1, each."""
    check_alike(input, label)
    return -label * torch.log(input + epsilon) - (1 - label) * torch.log(1 - input + epsilon)


@op
def binary_cross_entropy(
    input: Any,
    label: Any,
    weight: Any = None,
    reduction: str = "mean",
    name: str | None = None,
) -> Any:
    """The loss of probabilities by 0 or 1."""
    loss = F.binary_cross_entropy(input, label, reduction="none")
    return reduced(loss if weight is None else loss * weight, reduction)


@op
def binary_cross_entropy_with_logits(
    logit: Any,
    label: Any,
    weight: Any = None,
    reduction: str = "mean",
    pos_weight: Any = None,
    name: str | None = None,
) -> Any:
    """The loss of logits by 0 or 1."""
    loss = F.binary_cross_entropy_with_logits(logit, label, reduction="none", pos_weight=pos_weight)
    return reduced(loss if weight is None else loss * weight, reduction)


@op
def kl_div(input: Any, label: Any, reduction: str = "mean", name: str | None = None) -> Any:
    """How far a distribution is from another, given as logarithms."""
    loss = F.kl_div(input, label, reduction="none")
    if reduction == "batchmean":
        return at_least_1d(torch.sum(loss) / input.size(0))
    return reduced(loss, reduction)


@op
def margin_ranking_loss(
    input: Any,
    other: Any,
    label: Any,
    margin: float = 0.0,
    reduction: str = "mean",
    name: str | None = None,
) -> Any:
    """How much the order of pairs is wrong."""
    return reduced(torch.relu(margin - label * (input - other)), reduction)


@op
def sigmoid_focal_loss(
    logit: Any,
    label: Any,
    normalizer: Any = None,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: str = "sum",
    name: str | None = None,
) -> Any:
    """The loss of logits in which easy samples weigh little."""
    chance = torch.sigmoid(logit)
    loss = F.binary_cross_entropy_with_logits(logit, label, reduction="none")
    hit = chance * label + (1 - chance) * (1 - label)
    loss = loss * (alpha * label + (1 - alpha) * (1 - label)) * (1 - hit) ** gamma
    return reduced(loss if normalizer is None else loss / normalizer, reduction)


@op
def ctc_loss(
    log_probs: Any,
    labels: Any,
    input_lengths: Any,
    label_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    norm_by_times: bool = False,
) -> Any:
    """The loss of sequences without alignment, of logits [time, batch, classes]."""
    if norm_by_times:
        raise ValueError("ctc_loss(norm_by_times=True) is not here; divide the loss yourself.")
    each = F.ctc_loss(
        torch.log_softmax(log_probs, -1),
        labels,
        input_lengths,
        label_lengths,
        blank,
        reduction="none",
    )
    if reduction == "mean":
        return at_least_1d(torch.mean(each / label_lengths))
    return reduced(each, reduction)


@op
def dice_loss(input: Any, label: Any, epsilon: float = 1e-5, name: str | None = None) -> Any:
    """How little probabilities overlap with labels."""
    classes = F.one_hot(torch.squeeze(label, -1).to(torch.int64), input.size(-1)).to(input.dtype)
    axes = tuple(range(1, input.dim()))
    both = 2 * torch.sum(input * classes, axes)
    of_each = torch.sum(input, axes) + torch.sum(classes, axes)
    return at_least_1d(torch.mean(1 - both / (of_each + epsilon)))


@op
def gaussian_nll_loss(
    input: Any,
    label: Any,
    variance: Any,
    full: bool = False,
    epsilon: float = 1e-6,
    reduction: str = "mean",
    name: str | None = None,
) -> Any:
    """The loss of a mean and a variance."""
    found = F.gaussian_nll_loss(input, label, variance, full=full, eps=epsilon, reduction="none")
    return reduced(found, reduction)


@op
def poisson_nll_loss(
    input: Any,
    label: Any,
    log_input: bool = True,
    full: bool = False,
    epsilon: float = 1e-8,
    reduction: str = "mean",
    name: str | None = None,
) -> Any:
    """The loss of counts."""
    found = F.poisson_nll_loss(input, label, log_input, full, eps=epsilon, reduction="none")
    return reduced(found, reduction)

"""Losses that compare: pairs, triples, and a class with all others."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

from typing import Any

import torch
from torch.nn import functional as F

from fleetx.compat.paddle.nn.functional.reductions import reduced
from fleetx.compat.tensors import at_least_1d, op


@op
def cosine_embedding_loss(
    input1: Any,
    input2: Any,
    label: Any,
    margin: float = 0,
    reduction: str = "mean",
    name: str | None = None,
) -> Any:
    """Whether directions are alike, by labels of 1 and -1."""
    found = F.cosine_embedding_loss(input1, input2, label, margin, reduction="none")
    return reduced(found, reduction)


@op
def hinge_embedding_loss(
    input: Any, label: Any, margin: float = 1.0, reduction: str = "mean", name: str | None = None
) -> Any:
    """Distances, by labels of 1 and -1."""
    found = F.hinge_embedding_loss(input, label, margin, reduction="none")
    return reduced(found, reduction)


@op
def multi_label_soft_margin_loss(
    input: Any, label: Any, weight: Any = None, reduction: str = "mean", name: str | None = None
) -> Any:
    """The loss of several labels each."""
    found = F.multilabel_soft_margin_loss(input, label, weight, reduction="none")
    return reduced(found, reduction)


@op
def multi_margin_loss(
    input: Any,
    label: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    reduction: str = "mean",
    name: str | None = None,
) -> Any:
    """How much the label is ahead of the other classes."""
    found = F.multi_margin_loss(input, label.to(torch.int64), p, margin, weight, reduction="none")
    return reduced(found, reduction)


@op
def soft_margin_loss(
    input: Any, label: Any, reduction: str = "mean", name: str | None = None
) -> Any:
    """The logistic loss, by labels of 1 and -1."""
    found = F.soft_margin_loss(input, label.to(input.dtype), reduction="none")
    return reduced(found, reduction)


@op
def npair_loss(anchor: Any, positive: Any, labels: Any, l2_reg: float = 0.002) -> Any:
    """How alike pairs are, and how unlike all others."""
    labels = torch.reshape(labels, (-1, 1))
    same = torch.eq(labels, torch.t(labels)).to(anchor.dtype)
    wanted = same / torch.sum(same, 1, keepdim=True)
    sizes = torch.mean(torch.sum(anchor**2, 1)) + torch.mean(torch.sum(positive**2, 1))
    logs = torch.log_softmax(torch.matmul(anchor, torch.t(positive)), -1)
    return at_least_1d(torch.mean(-torch.sum(wanted * logs, -1)) + sizes * 0.25 * l2_reg)


@op
def triplet_margin_loss(
    input: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2,
    epsilon: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
    name: str | None = None,
) -> Any:
    """How much nearer one is than another."""
    found = F.triplet_margin_loss(
        input, positive, negative, margin, p, epsilon, swap, reduction="none"
    )
    return reduced(found, reduction)


@op
def triplet_margin_with_distance_loss(
    input: Any,
    positive: Any,
    negative: Any,
    distance_function: Any = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
    name: str | None = None,
) -> Any:
    """The same, by a distance of your own."""
    found = F.triplet_margin_with_distance_loss(
        input,
        positive,
        negative,
        distance_function=distance_function,
        margin=margin,
        swap=swap,
        reduction="none",
    )
    return reduced(found, reduction)

"""``paddle.fluid.layers.metric_op``: accuracy and the area under the curve."""

from typing import Any

import torch

from fleetx.compat import unique_names
from fleetx.compat.fills import Number
from fleetx.compat.labels import check_labels
from fleetx.compat.parameters import ParamAttr, create
from fleetx.compat.recorded import agreed, rebind, settle
from fleetx.record.variable import Variable


def accuracy(input: Any, label: Any, k: int = 1, correct: Any = None, total: Any = None) -> Any:
    """The share of samples whose label is among the ``k`` highest scores, of shape [1]."""
    check_labels(input, label)
    label = label if label.dim() == input.dim() else torch.unsqueeze(label, -1)
    label = agreed(input, label)
    with torch.no_grad():
        best = torch.topk(input, k, -1).indices
        right = torch.Tensor.to(torch.any(torch.eq(best, label), -1), torch.float32)
        found = torch.reshape(torch.mean(right), (1,))
        for held, counted in ((correct, right), (total, torch.ones_like(right))):
            if held is not None:
                count = torch.reshape(torch.sum(counted), (1,))
                rebind(held, torch.Tensor.to(count, held.dtype))
    return found


def auc(  # noqa: PLR0917
    input: Any,
    label: Any,
    curve: str = "ROC",
    num_thresholds: int = 2**12 - 1,
    topk: int = 1,
    slide_steps: int = 1,
    ins_tag_weight: Any = None,
) -> Any:
    """The area under the ROC curve, of all batches and of the last ``slide_steps``.

    Returns:
        The area over all batches, that over the last ones, and the buckets that were counted:
        positive and negative samples of the last batches, then of all.
    """
    if curve != "ROC":
        raise ValueError(f"auc(curve={curve!r}) is not covered; use 'ROC'.")
    settle(input, label)
    if not isinstance(input, Variable):
        raise TypeError("layers.auc() counts in a program; use paddle.metric.Auc in eager mode.")
    with torch.no_grad():
        batch = _counted(input, label, num_thresholds + 1)
        whole = [_kept(1, num_thresholds + 1) for _ in batch]
        for held, new in zip(whole, batch, strict=True):
            rebind(held, held + new)
        recent = whole
        if slide_steps > 0:
            recent = [_kept(slide_steps, num_thresholds + 1) for _ in batch]
            for held, new in zip(recent, batch, strict=True):
                rebind(held, torch.cat([held[1:], new]))
        areas = [_area(*(torch.sum(held, 0) for held in pair)) for pair in (whole, recent)]
    return areas[0], areas[1], [*recent, *whole]


def _kept(rows: int, buckets: int) -> Any:
    attr = ParamAttr(name=unique_names.generate("_generated_var"), trainable=False)
    return create("auc", attr, [rows, buckets], "int64", default=Number(0))


def _counted(input: Any, label: Any, buckets: int) -> list[Any]:
    """How many positive and negative samples of a batch fall into each bucket."""
    score = input[:, -1] if input.dim() > 1 else input
    at = torch.Tensor.to(score.detach() * (buckets - 1), torch.int64)
    at = torch.clamp(at, 0, buckets - 1)
    label = torch.Tensor.to(torch.reshape(label, (-1,)), torch.int64)
    empty = torch.Tensor.new_zeros(at, (buckets,))
    # A label may count clicks: all above 0 are positive, and those below 0 are left out.
    counts = (torch.Tensor.to(found, torch.int64) for found in (label > 0, label == 0))
    return [torch.index_add(empty, 0, at, count)[None] for count in counts]


def _area(positive: Any, negative: Any) -> Any:
    positive, negative = (torch.Tensor.to(v, torch.float64) for v in (positive, negative))
    above = torch.cumsum(torch.flip(positive, (0,)), 0)
    before = above - torch.flip(positive, (0,))
    total = torch.sum(torch.flip(negative, (0,)) * (above + before)) / 2
    both = torch.sum(positive) * torch.sum(negative)
    found = torch.where(both > 0, total / torch.clamp_min(both, 1), torch.zeros_like(both))
    return torch.reshape(found, (1,))

"""Losses of face recognition: classes may lie on several workers, each with a part of them."""

from typing import Any

import torch
import torch.distributed as dist

from fleetx.compat import exchanges
from fleetx.compat.groups import Group, alone, chosen
from fleetx.compat.plain import plain
from fleetx.compat.tensors import op, wrap


def _among(group: Any) -> Group:
    """The workers that share the classes: none but this one for False."""
    return alone() if group is False else chosen(group)


@op
def margin_cross_entropy(  # noqa: PLR0917 (the order of Paddle)
    logits: Any,
    label: Any,
    margin1: float = 1.0,
    margin2: float = 0.5,
    margin3: float = 0.0,
    scale: float = 64.0,
    group: Any = None,
    return_softmax: bool = False,
    reduction: str | None = "mean",
) -> Any:
    """The cross entropy of cosines, that of the true class moved: cos(m1 * angle + m2) - m3.

    Of classes that are shared, ``logits`` are those of this worker; labels count all of them.
    """
    if reduction not in {"mean", "sum", None, "none"}:
        raise ValueError(f"reduction={reduction!r} is none of 'mean', 'sum' and None.")
    among = _among(group)
    cosines, wanted = plain(logits), plain(label).long().reshape(-1)
    own = wanted - max(among.rank, 0) * cosines.size(1)
    here = (own >= 0) & (own < cosines.size(1))
    hit = torch.nn.functional.one_hot(own.clamp(0, cosines.size(1) - 1), cosines.size(1))
    hit = hit.bool() & here[:, None]
    # Where the cosine is 1 its angle has no gradient; the others are not touched.
    angle = torch.acos(torch.where(hit, cosines, torch.zeros_like(cosines)).clamp(-1.0, 1.0))
    moved = torch.cos(margin1 * angle + margin2) - margin3
    scores = torch.where(hit, moved, cosines) * scale
    loss, softmax = exchanges.softmax_with_cross_entropy(scores, wanted[:, None], among)
    loss = loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss
    return (loss, softmax) if return_softmax else loss


def class_center_sample(
    label: Any, num_classes: int, num_samples: int, group: Any = None
) -> tuple[Any, Any]:
    """Classes that a batch has and others at random; labels by their places among these.

    Of classes that are shared, ``num_classes`` are those of this worker; labels count all of them.
    """
    among = _among(group)
    if not 0 < num_samples <= num_classes:
        raise ValueError(
            f"class_center_sample(num_samples={num_samples}): of {num_classes} classes; choose a "
            "number between 1 and that."
        )
    wanted, first = plain(label).long().reshape(-1), max(among.rank, 0) * num_classes
    own = wanted[(wanted >= first) & (wanted < first + num_classes)] - first
    present = torch.unique(own)
    rest = torch.ones(num_classes, dtype=torch.bool)
    rest[present] = False
    others = torch.nonzero(rest).reshape(-1)
    missing = max(num_samples - len(present), 0)
    drawn = others[torch.randperm(len(others))[:missing]]
    sampled = torch.cat([present, drawn])
    counts = _counts(len(sampled), among)
    before = sum(counts[: max(among.rank, 0)])
    places = torch.zeros(num_classes * among.nranks, dtype=torch.int64)
    places[first + sampled] = torch.arange(len(sampled)) + before
    if among.nranks > 1:
        dist.all_reduce(places, group=among.process_group)
    return wrap(places[wanted].reshape(plain(label).shape)), wrap(sampled)


def _counts(count: int, among: Group) -> list[int]:
    """How many classes each worker of a group has sampled."""
    if among.nranks == 1:
        return [count]
    found: list[Any] = [None] * among.nranks
    dist.all_gather_object(found, count, group=among.process_group)
    return [int(one) for one in found]

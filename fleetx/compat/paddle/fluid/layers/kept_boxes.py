"""``multiclass_nms``: of boxes that overlap, the surest one of each class."""

from typing import Any

import torch
from torch import Tensor

from fleetx.compat import lods
from fleetx.compat.paddle.fluid.layers.boxes import overlaps
from fleetx.compat.paddle.fluid.layers.common import named
from fleetx.compat.recorded import fake, operator, settle
from fleetx.record.variable import Variable


def multiclass_nms(  # noqa: PLR0917 (the order of Paddle)
    bboxes: Any,
    scores: Any,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    name: str | None = None,
) -> Any:
    """Rows of label, score and box for all images, one behind the other; one -1 for none at all.

    Args:
        bboxes: [N, M, 4].
        scores: of each class, [N, C, M].
        score_threshold: boxes that are not surer are left out.
        nms_top_k: how many boxes of a class are looked at; all if negative.
        keep_top_k: how many boxes of an image stay; all if negative.
        nms_threshold: boxes that overlap more with a surer one are left out.
        normalized: whether the last pixel does not belong to a box.
        nms_eta: the factor on a threshold above one half, after each box that stays.
        background_label: a class that is left out; none if negative.
        name: of the result.
    """
    settle(bboxes, scores)
    if len(bboxes.shape) != 3 or bboxes.shape[-1] != 4 or len(scores.shape) != 3:
        raise ValueError(
            f"multiclass_nms takes boxes of [N, M, 4] and scores of [N, C, M], got "
            f"{list(bboxes.shape)} and {list(scores.shape)}; boxes of their own for each class, or "
            "records of different lengths, are not covered."
        )
    options = {
        "least": float(score_threshold),
        "looked": int(nms_top_k),
        "kept": int(keep_top_k),
        "most": float(nms_threshold),
        "extra": 0.0 if normalized else 1.0,
        "eta": float(nms_eta),
        "background": int(background_label),
    }
    if not isinstance(bboxes, Variable):
        found, begins = _of_images(bboxes, scores, **options)  # type: ignore[arg-type]
    else:
        likes = fake([None, 6], bboxes.dtype), fake([bboxes.fake.shape[0]], torch.int64)
        found, begins = operator(_of_images, bboxes, scores, like=likes, by_numbers=True, **options)
    return named(lods.set_lod(found, begins), name)


@torch.no_grad()
def _of_images(
    boxes: Tensor, scores: Tensor, *, kept: int, background: int, **options: Any
) -> tuple[Tensor, Tensor]:
    rows = [
        _of_image(own, chances, kept, background, options)
        for own, chances in zip(boxes, scores, strict=True)
    ]
    lengths = torch.tensor([len(found) for found in rows], device=boxes.device)
    if not int(lengths.sum()):
        return boxes.new_full([1, 1], -1.0), lengths.new_zeros([1])
    return torch.cat(rows), torch.cumsum(lengths, 0) - lengths


def _of_image(
    boxes: Tensor, scores: Tensor, kept: int, background: int, options: dict[str, Any]
) -> Tensor:
    found = [
        _rows(boxes, chances, label, **options)
        for label, chances in enumerate(scores)
        if label != background
    ]
    rows = torch.cat(found) if found else boxes.new_zeros([0, 6])
    if 0 <= kept < len(rows):
        surest = torch.argsort(rows[:, 1], descending=True, stable=True)[:kept]
        rows = rows[surest.sort().values]  # classes one behind the other, the surest first
    return rows


def _rows(
    boxes: Tensor,
    scores: Tensor,
    label: int,
    *,
    least: float,
    looked: int,
    most: float,
    extra: float,
    eta: float,
) -> Tensor:
    order = torch.argsort(scores, descending=True, stable=True)
    order = order[scores[order] > least]
    order = order[:looked] if looked >= 0 else order
    chosen = order[_surest(overlaps(boxes[order], boxes[order], extra), most, eta)]
    labels = torch.full_like(scores[chosen], float(label))
    return torch.cat([torch.stack([labels, scores[chosen]], 1), boxes[chosen]], 1)


def _surest(near: Tensor, most: float, eta: float) -> list[int]:
    """Which boxes stay, of those in the order of their scores."""
    shared, found = near.cpu(), list[int]()
    for number in range(len(shared)):
        if not found or float(shared[number, found].max()) <= most:
            found.append(number)
            if eta < 1.0 and most > 0.5:
                most *= eta
    return found

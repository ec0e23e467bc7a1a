"""``multiclass_nms``, ``multiclass_nms2``: of boxes that overlap, the surest one of each class."""

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
    given = bboxes, scores, score_threshold, nms_top_k, keep_top_k, nms_threshold
    found, _ = _kept(False, *given, normalized, nms_eta, background_label, name)
    return found


def multiclass_nms2(  # noqa: PLR0917 (the order of Paddle)
    bboxes: Any,
    scores: Any,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    return_index: bool = False,
    name: str | None = None,
) -> Any:
    """The same, no row for none at all, and with ``return_index`` which of all N * M boxes stay."""
    given = bboxes, scores, score_threshold, nms_top_k, keep_top_k, nms_threshold
    found = _kept(True, *given, normalized, nms_eta, background_label, name)
    return found if return_index else found[0]


def _kept(  # noqa: PLR0917
    empty: bool,
    bboxes: Any,
    scores: Any,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float,
    normalized: bool,
    nms_eta: float,
    background_label: int,
    name: str | None,
) -> tuple[Any, Any]:
    """The rows, and their numbers; ``empty`` says whether there may be none."""
    settle(bboxes, scores)
    if len(bboxes.shape) != 3 or bboxes.shape[-1] != 4 or len(scores.shape) != 3:
        raise ValueError(
            f"multiclass_nms takes boxes of [N, M, 4] and scores of [N, C, M], got "
            f"{list(bboxes.shape)} and {list(scores.shape)}; boxes of their own for each class, or "
            "records of different lengths, are not covered."
        )
    options = {
        "empty": empty,
        "least": float(score_threshold),
        "looked": int(nms_top_k),
        "kept": int(keep_top_k),
        "most": float(nms_threshold),
        "extra": 0.0 if normalized else 1.0,
        "eta": float(nms_eta),
        "background": int(background_label),
    }
    if not isinstance(bboxes, Variable):
        found, begins, numbers = _of_images(bboxes, scores, **options)  # type: ignore[arg-type]
    else:
        found, begins, numbers = _recorded(bboxes, scores, options)
    return named(lods.set_lod(found, begins), name), lods.set_lod(numbers, begins)


def _recorded(bboxes: Any, scores: Any, options: dict[str, Any]) -> Any:
    rows = fake([None, 6], bboxes.dtype)
    begins = fake([bboxes.fake.shape[0]], torch.int64)
    like = rows, begins, fake([rows.shape[0], 1], torch.int32)
    return operator(_of_images, bboxes, scores, like=like, by_numbers=True, **options)


@torch.no_grad()
def _of_images(
    boxes: Tensor, scores: Tensor, *, empty: bool, kept: int, background: int, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    parts = [
        _of_image(own, chances, kept, background, options)
        for own, chances in zip(boxes, scores, strict=True)
    ]
    lengths = torch.tensor([len(found) for found, _ in parts], dtype=torch.int64).to(boxes.device)
    numbers = [at + image * boxes.shape[1] for image, (_, at) in enumerate(parts)]
    whole = torch.cat([lengths.new_zeros([0]), *numbers])[:, None].to(torch.int32)
    if not len(whole) and not empty:
        return boxes.new_full([1, 1], -1.0), lengths.new_zeros([1]), whole.new_zeros([1, 1])
    rows = torch.cat([boxes.new_zeros([0, 6]), *(found for found, _ in parts)])
    return rows, torch.cumsum(lengths, 0) - lengths, whole


def _of_image(
    boxes: Tensor, scores: Tensor, kept: int, background: int, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    found = [
        _rows(boxes, chances, label, **options)
        for label, chances in enumerate(scores)
        if label != background
    ]
    rows = torch.cat([rows for rows, _ in found]) if found else boxes.new_zeros([0, 6])
    numbers = torch.cat([at for _, at in found]) if found else rows.new_zeros([0]).long()
    if 0 <= kept < len(rows):
        best = torch.argsort(rows[:, 1], descending=True, stable=True)[:kept]
        best = best.sort().values  # classes one behind the other, the surest first
        rows, numbers = rows[best], numbers[best]
    return rows, numbers


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
) -> tuple[Tensor, Tensor]:
    order = torch.argsort(scores, descending=True, stable=True)
    order = order[scores[order] > least]
    order = order[:looked] if looked >= 0 else order
    chosen = order[surest(overlaps(boxes[order], boxes[order], extra), most, eta)]
    labels = torch.full_like(scores[chosen], float(label))
    rows = torch.cat([torch.stack([labels, scores[chosen]], 1), boxes[chosen]], 1)
    return rows, chosen


def surest(near: Tensor, most: float, eta: float) -> list[int]:
    """Which boxes stay, of those in the order of their scores."""
    shared, found = near.cpu(), list[int]()
    for number in range(len(shared)):
        if not found or float(shared[number, found].max()) <= most:
            found.append(number)
            if eta < 1.0 and most > 0.5:
                most *= eta
    return found

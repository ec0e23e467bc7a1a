"""``ssd_loss``, ``multi_box_head`` and ``detection_output``: detectors that look once (SSD)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fleetx.compat import lods
from fleetx.compat.notes import note
from fleetx.compat.paddle.fluid.layers import boxes, kept_boxes
from fleetx.compat.paddle.fluid.layers.images import conv2d
from fleetx.compat.paddle.fluid.layers.manipulation import concat, flatten, reshape, transpose
from fleetx.compat.paddle.fluid.layers.matched_boxes import (
    at_least_one,
    matched,
    places_of,
    way_of_matching,
)
from fleetx.compat.recorded import fake, operator, settle
from fleetx.record.variable import Variable


def ssd_loss(  # noqa: PLR0917 (the order of Paddle)
    location: Any,
    confidence: Any,
    gt_box: Any,
    gt_label: Any,
    prior_box: Any,
    prior_box_var: Any = None,
    background_label: int = 0,
    overlap_threshold: float = 0.5,
    neg_pos_ratio: float = 3.0,
    neg_overlap: float = 0.5,
    loc_loss_weight: float = 1.0,
    conf_loss_weight: float = 1.0,
    match_type: str = "per_prediction",
    mining_type: str = "max_negative",
    normalize: bool = True,
    sample_size: int | None = None,
) -> Any:
    """How wrong places and classes of prior boxes are, added up for each image: [N, 1].

    Args:
        location: where boxes are, as offsets from prior ones, [N, M, 4].
        confidence: numbers of the classes, before a softmax, [N, M, C].
        gt_box: the true boxes of N images, records of [R, 4].
        gt_label: their classes, [R, 1].
        prior_box: [M, 4].
        prior_box_var: what offsets are divided by: [M, 4], four numbers, or None.
        background_label: the class of prior boxes that stand for no true one.
        overlap_threshold: how much of a true box others than its nearest have to cover.
        neg_pos_ratio: how many of those without a true box count for each that has one.
        neg_overlap: those that cover as much of a true box never do. As in Paddle, a prior box that
            no true one was matched with counts as covering nothing.
        loc_loss_weight: the factor on errors of places.
        conf_loss_weight: the factor on errors of classes.
        match_type: "bipartite" or "per_prediction", as of ``bipartite_match``.
        mining_type: how those without a true box are chosen: the most wrong, "max_negative".
        normalize: divide by the number of prior boxes of the batch that have a true one.
        sample_size: of another ``mining_type``.
    """
    settle(location, gt_box)
    if mining_type != "max_negative":
        raise ValueError(
            f"ssd_loss(mining_type={mining_type!r}) is none that Paddle's ssd_loss has; set "
            "'max_negative', with neg_pos_ratio and neg_overlap."
        )
    if sample_size is not None:
        note("ssd_loss(sample_size)", "mining_type='max_negative' chooses by neg_pos_ratio.")
    options: dict[str, Any] = {
        "background": int(background_label),
        "way": way_of_matching(match_type, overlap_threshold, "ssd_loss"),
        "ratio": float(neg_pos_ratio),
        "apart": float(neg_overlap),
        "weights": (float(loc_loss_weight), float(conf_loss_weight)),
        "normalize": bool(normalize),
    }
    scale, begins = boxes.variances(prior_box_var), lods.offsets_of(gt_box, "ssd_loss")
    given = location, confidence, gt_box, gt_label, begins, prior_box, scale
    if not isinstance(location, Variable):
        return _loss(*given, **options)
    like = fake([location.fake.shape[0], 1], location.dtype, like=(location, confidence))
    return operator(_loss, *given, like=like, by_numbers=True, **options)


def _loss(  # noqa: PLR0917
    location: Tensor,
    confidence: Tensor,
    true: Tensor,
    labels: Tensor,
    begins: Tensor,
    priors: Tensor,
    scale: Tensor | None,
    *,
    background: int,
    way: dict[str, Any],
    ratio: float,
    apart: float,
    weights: tuple[float, float],
    normalize: bool,
) -> Tensor:
    if len(labels) != len(true):
        raise ValueError(
            f"ssd_loss got {len(true)} true boxes and {len(labels)} labels; feed one for each box."
        )
    with torch.no_grad():
        indices, near = matched(boxes.overlaps(true, priors), begins, **way)
        at, there = places_of(indices, begins)
        codes = boxes.encoded(priors, scale, at_least_one(true)[at])
        codes = torch.where(there[..., None], codes, 0.0)
        kinds = torch.where(there, at_least_one(labels.reshape(-1))[at].long(), background)
    kind_wrong = -torch.gather(F.log_softmax(confidence, -1), -1, kinds[..., None])[..., 0]
    place_wrong = F.smooth_l1_loss(location, codes, reduction="none").sum(-1)
    counted = there | _negatives(kind_wrong.detach(), there, near < apart, ratio)
    wrong = weights[0] * place_wrong * there + weights[1] * kind_wrong * counted
    total = wrong.sum(1, keepdim=True)
    return total / there.sum() if normalize else total


def _negatives(wrong: Tensor, there: Tensor, apart: Tensor, ratio: float) -> Tensor:
    """The most wrong of those without a true box; of equal ones the first."""
    free = ~there & apart
    most = torch.minimum((there.sum(1) * ratio).long(), free.sum(1))
    order = torch.where(free, wrong, -math.inf).argsort(dim=1, descending=True, stable=True)
    return free & (order.argsort(1) < most[:, None])


def multi_box_head(  # noqa: PLR0917 (the order of Paddle)
    inputs: Sequence[Any],
    image: Any,
    base_size: int,
    num_classes: int,
    aspect_ratios: Sequence[Any],
    min_ratio: int | None = None,
    max_ratio: int | None = None,
    min_sizes: Sequence[Any] | None = None,
    max_sizes: Sequence[Any] | None = None,
    steps: Sequence[float] | None = None,
    step_w: Sequence[float] | None = None,
    step_h: Sequence[float] | None = None,
    offset: float = 0.5,
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    flip: bool = True,
    clip: bool = False,
    kernel_size: int = 1,
    pad: int = 0,
    stride: int = 1,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[Any, Any, Any, Any]:
    """Places [N, M, 4], classes [N, M, C], prior boxes and their variances [M, 4] of several maps.

    Each map has two convolutions of its own. Without ``min_sizes``, the sizes of prior boxes rise
    evenly from ``min_ratio`` to ``max_ratio`` per cent of ``base_size``, from the second map on.
    """
    if not isinstance(inputs, list | tuple):
        raise TypeError(f"multi_box_head(inputs) is a list of maps, got {inputs!r}")
    if min_sizes is None and max_sizes is None:
        min_sizes, max_sizes = _rising(len(inputs), base_size, min_ratio, max_ratio)
    across, down = (steps, steps) if steps is not None else (step_w, step_h)
    lists = (min_sizes, max_sizes, aspect_ratios, across, down)
    columns = [_of_maps(given, len(inputs)) for given in lists]
    rest = variance, flip, clip
    found = []
    for x, low, high, ratios, wide, tall in zip(inputs, *columns, strict=True):
        apart = wide or 0.0, tall or 0.0
        given = low, high, ratios or [], *rest, apart, offset, None, min_max_aspect_ratios_order
        box, spread = boxes.prior_box(x, image, *given)
        window = {"filter_size": kernel_size, "padding": pad, "stride": stride}
        predicted = [_predicted(x, int(box.shape[2]), width, window) for width in (4, num_classes)]
        found.append((*predicted, flatten(box, 3), flatten(spread, 3)))
    places, classes, priors, spreads = zip(*found, strict=True)
    return concat(places, 1), concat(classes, 1), concat(priors), concat(spreads)


def _rising(
    count: int, base: int, least: int | None, most: int | None
) -> tuple[list[float], list[float]]:
    """The sizes of prior boxes by map, from a tenth of the image on."""
    if count <= 2 or least is None or most is None:
        raise ValueError(
            f"multi_box_head got {count} maps, min_ratio={least!r} and max_ratio={most!r}, and "
            "sizes follow from ratios for three maps or more; set min_sizes and max_sizes."
        )
    step = math.floor((most - least) / (count - 2))
    ratios = range(least, most + 1, step)
    low = [base * 0.1, *(base * ratio / 100.0 for ratio in ratios)]
    return low, [base * 0.2, *(base * (ratio + step) / 100.0 for ratio in ratios)]


def _of_maps(given: Sequence[Any] | None, count: int) -> list[Any]:
    """One entry for each map."""
    if given is None:
        return [None] * count
    if not isinstance(given, list | tuple) or len(given) < count:
        raise ValueError(
            f"multi_box_head has {count} maps and got {given!r} for them; give a list with an "
            "entry for each map."
        )
    return list(given)[:count]


def _predicted(x: Any, boxes_of_place: int, width: int, window: dict[str, Any]) -> Any:
    """So many numbers for each prior box of a map: [N, M, width]."""
    found = conv2d(x, boxes_of_place * width, **window)
    return reshape(transpose(found, [0, 2, 3, 1]), [0, -1, width])


def detection_output(  # noqa: PLR0917 (the order of Paddle)
    loc: Any,
    scores: Any,
    prior_box: Any,
    prior_box_var: Any,
    background_label: int = 0,
    nms_threshold: float = 0.3,
    nms_top_k: int = 400,
    keep_top_k: int = 200,
    score_threshold: float = 0.01,
    nms_eta: float = 1.0,
    return_index: bool = False,
) -> Any:
    """Rows of label, score and box of what was found, one image behind the other."""
    found = boxes.box_coder(prior_box, prior_box_var, loc, "decode_center_size")
    chances = transpose(F.softmax(scores, -1), [0, 2, 1])
    given = found, chances, score_threshold, nms_top_k, keep_top_k, nms_threshold
    rest = True, nms_eta, background_label
    if return_index:
        return kept_boxes.multiclass_nms2(*given, *rest, return_index=True)
    return kept_boxes.multiclass_nms(*given, *rest)

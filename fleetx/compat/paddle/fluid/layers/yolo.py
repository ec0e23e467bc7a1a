"""``yolo_box`` and ``yolov3_loss``: boxes that a map predicts on its grid, and how wrong they are.

A map has, for each anchor, four numbers of a box, one of being there and one of each class.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fleetx.compat.paddle.fluid.layers.boxes import overlaps
from fleetx.compat.paddle.fluid.layers.common import named
from fleetx.compat.recorded import fake, operator, settle
from fleetx.record.variable import Variable
from fleetx.static.layers.parameters import size_of

TINY = 1e-6
"""Boxes of less width or height are none: they fill up the rows of a batch."""


def _pairs(anchors: Sequence[int]) -> list[tuple[float, float]]:
    if not anchors or len(anchors) % 2:
        raise ValueError(f"anchors are pairs of width and height, got {list(anchors)!r}")
    numbers = [float(number) for number in anchors]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


class _Grid(NamedTuple):
    """What a map says at each place, by anchor: [N, A, H, W]."""

    box: Tensor
    """Four numbers in front: [4, N, A, H, W]."""
    there: Tensor
    classes: Tensor
    """[N, A, H, W, C]."""


def _read(x: Tensor, anchors: int) -> _Grid:
    count, _, rows, columns = x.shape
    parts = x.reshape(count, anchors, -1, rows, columns).movedim(2, 0)
    return _Grid(parts[:4], parts[4], parts[5:].movedim(0, -1))


def _boxes(grid: _Grid, anchors: Sequence[tuple[float, float]], ratio: int, scale: float) -> Tensor:
    """Middle and size of each box as parts of the image: [N, A, H, W, 4]."""
    rows, columns = grid.there.shape[2:]
    device, shift = grid.box.device, (scale - 1.0) / 2
    x = torch.arange(columns, device=device) - shift + torch.sigmoid(grid.box[0]) * scale
    y = torch.arange(rows, device=device)[:, None] - shift + torch.sigmoid(grid.box[1]) * scale
    sizes = torch.tensor(anchors, device=device)[:, :, None, None]
    wide = torch.exp(grid.box[2]) * sizes[:, 0] / (ratio * columns)
    high = torch.exp(grid.box[3]) * sizes[:, 1] / (ratio * rows)
    return torch.stack([x / columns, y / rows, wide, high], -1)


def _corners(box: Tensor) -> Tensor:
    return torch.cat([box[..., :2] - box[..., 2:] / 2, box[..., :2] + box[..., 2:] / 2], -1)


def yolo_box(  # noqa: PLR0917 (the order of Paddle)
    x: Any,
    img_size: Any,
    anchors: Sequence[int],
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    clip_bbox: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> tuple[Any, Any]:
    """The boxes of a map in pixels of each image, [N, A * H * W, 4], and scores of the classes."""
    settle(x, img_size)
    options: dict[str, Any] = {
        "anchors": _pairs(anchors),
        "least": float(conf_thresh),
        "ratio": int(downsample_ratio),
        "clip": bool(clip_bbox),
        "scale": float(scale_x_y),
    }
    if not isinstance(x, Variable):
        return _found(x, img_size, **options)
    places = len(options["anchors"]) * size_of(x, 2) * size_of(x, 3)
    shapes = [[x.fake.shape[0], places, last] for last in (4, int(class_num))]
    likes = tuple(fake(shape, x.dtype, like=x) for shape in shapes)
    boxes, scores = operator(_found, x, img_size, like=likes, **options)
    return named(boxes, name), scores


def _found(
    x: Tensor,
    sizes: Tensor,
    *,
    anchors: list[tuple[float, float]],
    least: float,
    ratio: int,
    clip: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    grid = _read(x, len(anchors))
    whole = sizes.flip(1).to(x.dtype)[:, None, None, None]
    found = _corners(_boxes(grid, anchors, ratio, scale)) * torch.cat([whole, whole], -1)
    if clip:
        low, high = found[..., :2].clamp_min(0.0), torch.minimum(found[..., 2:], whole - 1)
        found = torch.cat([low, high], -1)
    sure = torch.sigmoid(grid.there)[..., None]
    kept = (sure >= least).to(x.dtype)
    scores = sure * torch.sigmoid(grid.classes) * kept
    return (found * kept).flatten(1, 3), scores.flatten(1, 3)


def yolov3_loss(  # noqa: PLR0917 (the order of Paddle)
    x: Any,
    gt_box: Any,
    gt_label: Any,
    anchors: Sequence[int],
    anchor_mask: Sequence[int],
    class_num: int,
    ignore_thresh: float,
    downsample_ratio: int,
    gt_score: Any = None,
    use_label_smooth: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> Any:
    """How wrong a map is about the boxes of each image: [N]."""
    settle(x, gt_box, gt_label)
    smooth = min(1.0 / class_num, 1.0 / 40) if use_label_smooth else 0.0
    options: dict[str, Any] = {
        "anchors": _pairs(anchors),
        "mask": [int(number) for number in anchor_mask],
        "ignored": float(ignore_thresh),
        "ratio": int(downsample_ratio),
        "targets": (1.0 - smooth, smooth),
        "scale": float(scale_x_y),
    }
    given = (x, gt_box, gt_label) if gt_score is None else (x, gt_box, gt_label, gt_score)
    if not isinstance(x, Variable):
        return _loss(*given, **options)
    like = fake([x.fake.shape[0]], x.dtype, like=x)
    return named(operator(_loss, *given, like=like, **options), name)


def _loss(
    x: Tensor,
    boxes: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    anchors: list[tuple[float, float]],
    mask: list[int],
    ignored: float,
    ratio: int,
    targets: tuple[float, float],
    scale: float,
) -> Tensor:
    grid = _read(x, len(mask))
    weights = torch.ones_like(boxes[..., 0]) if weights is None else weights
    sizes = torch.tensor(anchors, device=x.device) / (ratio * x.shape[3])
    sizes[:, 1] *= x.shape[3] / x.shape[2]
    pairs = _matched(boxes, sizes, mask, (x.shape[2], x.shape[3]))
    count = weights[pairs.image, pairs.box]
    with torch.no_grad():
        wanted = _objects(grid, boxes, [anchors[at] for at in mask], ignored, ratio, scale)
        for number in range(boxes.shape[1]):  # where two boxes meet, the last one counts
            own = pairs.box == number
            wanted[tuple(place[own] for place in pairs.places)] = count[own].to(wanted.dtype)
    sure = F.binary_cross_entropy_with_logits
    nothing = torch.zeros_like(grid.there)
    there = sure(grid.there, nothing + 1.0, reduction="none") * wanted
    absent = sure(grid.there, nothing, reduction="none")
    zero = torch.where(wanted > -0.5, absent, nothing)
    total = torch.where(wanted > 1e-5, there, zero).flatten(1).sum(1)
    image, anchor, row, column = pairs.places
    wrong = _place_error(grid.box[:, image, anchor, row, column], boxes, sizes, pairs, x.shape)
    kinds = grid.classes[image, anchor, row, column]
    truth = torch.full_like(kinds, targets[1])
    names = labels[pairs.image, pairs.box].long()
    truth = truth.scatter(1, names[:, None], targets[0])
    wrong = wrong + sure(kinds, truth, reduction="none").sum(1)
    return total.index_add(0, image, wrong * count)


class _Pairs(NamedTuple):
    """Boxes of images whose nearest anchor is one of this map's."""

    image: Tensor
    box: Tensor
    anchor: Tensor
    """Of all anchors."""
    places: tuple[Tensor, Tensor, Tensor, Tensor]
    """Where they are in the map: image, anchor of the map, row, column."""


@torch.no_grad()
def _matched(boxes: Tensor, sizes: Tensor, mask: list[int], grid: tuple[int, int]) -> _Pairs:
    wide = boxes[..., None, 2:]
    shared = torch.minimum(wide, sizes).prod(-1)
    alike = shared / (wide.prod(-1) + sizes.prod(-1) - shared)
    best = alike.argmax(-1)
    own = torch.full([len(sizes)], -1, device=boxes.device)
    own[mask] = torch.arange(len(mask), device=boxes.device)
    real = (boxes[..., 2:] > TINY).all(-1)
    image, box = torch.nonzero(real & (own[best] >= 0), as_tuple=True)
    anchor = best[image, box]
    row = (boxes[image, box, 1] * grid[0]).long().clamp_max(grid[0] - 1)
    column = (boxes[image, box, 0] * grid[1]).long().clamp_max(grid[1] - 1)
    return _Pairs(image, box, anchor, (image, own[anchor], row, column))


def _objects(  # noqa: PLR0917
    grid: _Grid,
    boxes: Tensor,
    anchors: list[tuple[float, float]],
    ignored: float,
    ratio: int,
    scale: float,
) -> Tensor:
    """0 where a map predicts nothing, and -1 where what it predicts is near enough to a box."""
    found = _corners(_boxes(grid, anchors, ratio, scale)).flatten(1, 3)
    real = (boxes[..., 2:] > TINY).all(-1)
    near = torch.where(real[:, None], overlaps(found, _corners(boxes)), 0.0) > ignored
    return -near.any(-1).to(grid.there.dtype).reshape(grid.there.shape)


def _place_error(
    found: Tensor, boxes: Tensor, sizes: Tensor, pairs: _Pairs, shape: Sequence[int]
) -> Tensor:
    """How wrong place and size of each box are; small boxes count for more."""
    box = boxes[pairs.image, pairs.box]
    _, _, row, column = pairs.places
    places = torch.stack([box[:, 0] * shape[3] - column, box[:, 1] * shape[2] - row])
    wanted = torch.log(box[:, 2:] / sizes[pairs.anchor]).T
    wrong = F.binary_cross_entropy_with_logits(found[:2], places, reduction="none")
    return (wrong.sum(0) + (found[2:] - wanted).abs().sum(0)) * (2.0 - box[:, 2] * box[:, 3])

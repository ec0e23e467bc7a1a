"""``paddle.vision.ops``: what finds objects, in eager mode and in programs."""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fleetx.compat.fills import Bell
from fleetx.compat.paddle.fluid.layers import boxes as _boxes
from fleetx.compat.paddle.fluid.layers import regions, yolo
from fleetx.compat.paddle.fluid.layers.common import pair, refused
from fleetx.compat.paddle.fluid.layers.deformed import deformed
from fleetx.compat.paddle.fluid.layers.kept_boxes import surest
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.plain import plain
from fleetx.compat.recorded import fake, operator, settle
from fleetx.compat.tensors import op
from fleetx.record.variable import Variable

__all__ = [
    "DeformConv2D",
    "RoIAlign",
    "RoIPool",
    "box_coder",
    "deform_conv2d",
    "nms",
    "prior_box",
    "roi_align",
    "roi_pool",
    "yolo_box",
    "yolo_loss",
]


@op
def yolo_box(
    x: Any,
    img_size: Any,
    anchors: Sequence[int],
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    clip_bbox: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
    iou_aware: bool = False,
    iou_aware_factor: float = 0.5,
) -> Any:
    """The boxes of a map in pixels of each image, [N, A * H * W, 4], and scores of the classes."""
    if iou_aware:
        raise refused(
            "yolo_box",
            "iou_aware=True",
            "reads maps that also predict how much their boxes overlap, which are not covered",
            "train the map without that number, and leave iou_aware out",
        )
    given = anchors, class_num, conf_thresh, downsample_ratio, clip_bbox, name, scale_x_y
    return yolo.yolo_box(plain(x), plain(img_size), *given)


@op
def yolo_loss(
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
    given = anchors, anchor_mask, class_num, ignore_thresh, downsample_ratio, plain(gt_score)
    rest = use_label_smooth, name, scale_x_y
    return yolo.yolov3_loss(plain(x), plain(gt_box), plain(gt_label), *given, *rest)


@op
def prior_box(
    input: Any,
    image: Any,
    min_sizes: Any,
    max_sizes: Any = None,
    aspect_ratios: Any = (1.0,),
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    flip: bool = False,
    clip: bool = False,
    steps: Sequence[float] = (0.0, 0.0),
    offset: float = 0.5,
    min_max_aspect_ratios_order: bool = False,
    name: str | None = None,
) -> Any:
    """Boxes of some sizes and shapes at each place of a map, and their variances: [H, W, P, 4]."""
    given = min_sizes, max_sizes, aspect_ratios, variance, flip, clip, steps, offset, name
    return _boxes.prior_box(plain(input), plain(image), *given, min_max_aspect_ratios_order)


@op
def box_coder(
    prior_box: Any,
    prior_box_var: Any,
    target_box: Any,
    code_type: str = "encode_center_size",
    box_normalized: bool = True,
    axis: int = 0,
    name: str | None = None,
) -> Any:
    """Boxes as offsets from prior ones, or such offsets as boxes."""
    given = plain(prior_box), plain(prior_box_var), plain(target_box)
    return _boxes.box_coder(*given, code_type, box_normalized, name, axis)


@op
def roi_pool(
    x: Any,
    boxes: Any,
    boxes_num: Any,
    output_size: Any,
    spatial_scale: float = 1.0,
    name: str | None = None,
) -> Any:
    """The largest number in each of the cells of a box: [R, C, h, w]."""
    height, width = pair(output_size)
    given = plain(x), plain(boxes), height, width, spatial_scale
    return regions.roi_pool(*given, rois_num=plain(boxes_num), name=name)


@op
def roi_align(
    x: Any,
    boxes: Any,
    boxes_num: Any,
    output_size: Any,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = True,
    name: str | None = None,
) -> Any:
    """The mean of numbers between pixels, in each of the cells of a box: [R, C, h, w]."""
    height, width = pair(output_size)
    given = plain(x), plain(boxes), plain(boxes_num), height, width
    return regions.aligned(*given, spatial_scale, sampling_ratio, half=aligned, name=name)


@op
def nms(
    boxes: Any,
    iou_threshold: float = 0.3,
    scores: Any = None,
    category_idxs: Any = None,
    categories: Sequence[int] | None = None,
    top_k: int | None = None,
) -> Any:
    """The numbers of boxes that overlap with no surer one of their category, the surest first."""
    settle(boxes)
    if category_idxs is not None and categories is None:
        raise ValueError(
            "nms(category_idxs=...) says the category of each box, and categories=None names none "
            "that may stay; pass the list of their numbers as categories."
        )
    given = plain((boxes, scores, None if scores is None else category_idxs))
    options: dict[str, Any] = {
        "most": float(iou_threshold),
        "categories": [] if categories is None else [int(number) for number in categories],
        "top": None if top_k is None else int(top_k),
    }
    if not isinstance(boxes, Variable):
        return _nms(*given, **options)
    return operator(_nms, *given, like=fake([None], torch.int64), by_numbers=True, **options)


@torch.no_grad()
def _nms(
    boxes: Tensor,
    scores: Tensor | None,
    kinds: Tensor | None,
    *,
    most: float,
    categories: list[int],
    top: int | None,
) -> Tensor:
    order = torch.arange(len(boxes), device=boxes.device)
    if scores is not None:
        order = torch.argsort(scores.reshape(-1), descending=True, stable=True)
    if kinds is not None:
        order = order[torch.isin(kinds[order], torch.tensor(categories, device=boxes.device))]
    near = torch.nan_to_num(_boxes.overlaps(boxes[order], boxes[order]))
    if kinds is not None:  # boxes of other categories are in nobody's way
        near = near * (kinds[order][:, None] == kinds[order])
    return order[surest(near, most, 1.0)][:top]


@op
def deform_conv2d(
    x: Any,
    offset: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    deformable_groups: int = 1,
    groups: int = 1,
    mask: Any = None,
    name: str | None = None,
) -> Any:
    """A convolution over pixels that are read elsewhere: each window says where."""
    settle(x)
    given = plain(x), plain(offset), plain(weight), plain(bias), plain(mask)
    return deformed(*given, stride, padding, dilation, deformable_groups, groups, name)


class DeformConv2D(Layer):
    """A convolution over pixels that are read elsewhere, with a weight of its own."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        deformable_groups: int = 1,
        groups: int = 1,
        weight_attr: Any = None,
        bias_attr: Any = None,
    ) -> None:
        super().__init__()
        kernel = pair(kernel_size)
        self._given = stride, padding, dilation, deformable_groups, groups
        std = math.sqrt(2.0 / (math.prod(kernel) * in_channels))
        self.weight = self.create_parameter(
            [out_channels, in_channels // groups, *kernel],
            weight_attr,
            default_initializer=Bell(0.0, std),
        )
        self.bias = self.create_parameter([out_channels], bias_attr, is_bias=True)

    @override
    def forward(self, x: Any, offset: Any, mask: Any = None) -> Any:
        return deform_conv2d(x, offset, self.weight, self.bias, *self._given, mask)


class RoIAlign(Layer):
    """``roi_align`` for one size of results."""

    def __init__(self, output_size: Any, spatial_scale: float = 1.0) -> None:
        super().__init__()
        self._output_size, self._spatial_scale = output_size, spatial_scale

    @override
    def forward(self, x: Any, boxes: Any, boxes_num: Any, aligned: bool = True) -> Any:
        given = self._output_size, self._spatial_scale
        return roi_align(x, boxes, boxes_num, *given, aligned=aligned)


class RoIPool(Layer):
    """``roi_pool`` for one size of results."""

    def __init__(self, output_size: Any, spatial_scale: float = 1.0) -> None:
        super().__init__()
        self._output_size, self._spatial_scale = output_size, spatial_scale

    @override
    def forward(self, x: Any, boxes: Any, boxes_num: Any) -> Any:
        return roi_pool(x, boxes, boxes_num, self._output_size, self._spatial_scale)

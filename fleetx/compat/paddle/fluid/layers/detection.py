"""``paddle.fluid.layers.detection``."""

from fleetx.compat.paddle.fluid.layers.boxes import (
    anchor_generator,
    box_coder,
    iou_similarity,
    prior_box,
)
from fleetx.compat.paddle.fluid.layers.kept_boxes import multiclass_nms
from fleetx.compat.paddle.fluid.layers.matched_boxes import bipartite_match, target_assign
from fleetx.compat.paddle.fluid.layers.regions import roi_align, roi_pool
from fleetx.compat.paddle.fluid.layers.ssd import detection_output, multi_box_head, ssd_loss
from fleetx.compat.paddle.fluid.layers.yolo import yolo_box, yolov3_loss

__all__ = [
    "anchor_generator",
    "bipartite_match",
    "box_coder",
    "detection_output",
    "iou_similarity",
    "multi_box_head",
    "multiclass_nms",
    "prior_box",
    "roi_align",
    "roi_pool",
    "ssd_loss",
    "target_assign",
    "yolo_box",
    "yolov3_loss",
]

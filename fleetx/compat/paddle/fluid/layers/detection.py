"""``paddle.fluid.layers.detection``."""

from fleetx.compat.paddle.fluid.layers.boxes import (
    anchor_generator,
    box_coder,
    iou_similarity,
    prior_box,
)
from fleetx.compat.paddle.fluid.layers.kept_boxes import multiclass_nms
from fleetx.compat.paddle.fluid.layers.regions import roi_align, roi_pool
from fleetx.compat.paddle.fluid.layers.yolo import yolo_box, yolov3_loss

__all__ = [
    "anchor_generator",
    "box_coder",
    "iou_similarity",
    "multiclass_nms",
    "prior_box",
    "roi_align",
    "roi_pool",
    "yolo_box",
    "yolov3_loss",
]

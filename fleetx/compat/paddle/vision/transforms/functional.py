"""``paddle.vision.transforms.functional``: over pictures of PIL and arrays [height, width, …]."""

from typing import Any

import numpy as np
import torch

from fleetx.compat.paddle.tensor.creation import to_tensor as as_tensor
from fleetx.compat.paddle.vision.image import cv2, is_picture, pil

_WAYS = {
    "nearest": "INTER_NEAREST",
    "bilinear": "INTER_LINEAR",
    "bicubic": "INTER_CUBIC",
    "lanczos": "INTER_LANCZOS4",
    "area": "INTER_AREA",
}


def _array(img: Any) -> Any:
    found = np.asarray(img)
    return found[:, :, None] if found.ndim == 2 else found


def size_of(img: Any) -> tuple[int, int]:
    """Height and width."""
    if is_picture(img):
        return img.height, img.width
    return int(np.asarray(img).shape[0]), int(np.asarray(img).shape[1])


def to_tensor(pic: Any, data_format: str = "CHW") -> Any:
    """Numbers of a picture; bytes come between 0 and 1."""
    found = _array(pic)
    scaled = found.astype("float32") / 255.0 if found.dtype == np.uint8 else found
    ordered = scaled if data_format == "HWC" else scaled.transpose(2, 0, 1)
    return as_tensor(np.ascontiguousarray(ordered).astype("float32"))


def normalize(img: Any, mean: Any, std: Any, data_format: str = "CHW", to_rgb: bool = False) -> Any:
    """Less the mean, over the deviation of each channel."""
    shape = (-1, 1, 1) if data_format == "CHW" else (1, 1, -1)
    middle, spread = (np.asarray(v, "float32").reshape(shape) for v in (mean, std))
    if isinstance(img, torch.Tensor):
        return (img - torch.as_tensor(middle)) / torch.as_tensor(spread)
    found = np.asarray(img).astype("float32")
    found = found[::-1] if to_rgb and data_format == "CHW" else found
    return (found - middle) / spread


def resize(img: Any, size: Any, interpolation: str = "bilinear") -> Any:
    """Another size; one number is that of the shorter side."""
    height, width = size_of(img)
    if isinstance(size, int):
        short = min(height, width)
        wanted = (round(height * size / short), round(width * size / short))
    else:
        wanted = (int(size[0]), int(size[1]))
    if is_picture(img):
        return img.resize(wanted[::-1], getattr(pil().Resampling, interpolation.upper()))
    found = np.asarray(img)
    way = getattr(cv2(), _WAYS[interpolation])
    made = cv2().resize(found, wanted[::-1], interpolation=way)
    return made.reshape(*wanted, *found.shape[2:])


def crop(img: Any, top: int, left: int, height: int, width: int) -> Any:
    """A part of a picture."""
    if is_picture(img):
        return img.crop((left, top, left + width, top + height))
    return np.asarray(img)[top : top + height, left : left + width]


def center_crop(img: Any, output_size: Any) -> Any:
    """The middle of a picture."""
    wanted = (output_size, output_size) if isinstance(output_size, int) else output_size
    height, width = size_of(img)
    top, left = round((height - wanted[0]) / 2), round((width - wanted[1]) / 2)
    return crop(img, top, left, wanted[0], wanted[1])


def hflip(img: Any) -> Any:
    """Left is right."""
    if is_picture(img):
        return img.transpose(pil().Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(img)[:, ::-1]


def vflip(img: Any) -> Any:
    """Top is bottom."""
    if is_picture(img):
        return img.transpose(pil().Transpose.FLIP_TOP_BOTTOM)
    return np.asarray(img)[::-1]


def pad(img: Any, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> Any:
    """Pixels around: one number, (sides, top and bottom) or (left, top, right, bottom)."""
    given = [padding] if isinstance(padding, int) else list(padding)
    left, top, right, bottom = {1: given * 4, 2: given * 2, 4: given}[len(given)]
    was = is_picture(img)
    found = np.asarray(img)
    around = [(top, bottom), (left, right), *[(0, 0)] * (found.ndim - 2)]
    options = {"constant_values": fill} if padding_mode == "constant" else {}
    made = np.pad(found, around, mode=padding_mode, **options)  # type: ignore[call-overload]
    return pil().fromarray(made) if was else made


def to_grayscale(img: Any, num_output_channels: int = 1) -> Any:
    """Without colours."""
    found = np.asarray(img)
    grey = found if found.ndim == 2 else found[..., :3] @ np.array([0.299, 0.587, 0.114])
    planes = np.stack([np.rint(grey).astype(found.dtype)] * num_output_channels, -1)
    if is_picture(img):
        return pil().fromarray(planes[..., 0] if num_output_channels == 1 else planes)
    return planes

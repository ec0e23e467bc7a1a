"""``paddle.dataset.image``: pictures as arrays, of height, width and colours."""

from typing import Any

import numpy as np


def _cv2() -> Any:
    try:
        import cv2
    except ImportError as error:
        raise ImportError(
            "paddle.dataset.image needs OpenCV; install opencv-python-headless."
        ) from error
    return cv2


def load_image_bytes(bytes: bytes, is_color: bool = True) -> Any:
    """A picture from the bytes of a file."""
    return _cv2().imdecode(np.frombuffer(bytes, np.uint8), 1 if is_color else 0)


def load_image(file: str, is_color: bool = True) -> Any:
    """A picture from a file."""
    return _cv2().imread(str(file), 1 if is_color else 0)


def resize_short(im: Any, size: int) -> Any:
    """A picture whose shorter side has ``size`` pixels."""
    height, width = im.shape[:2]
    scale = size / min(height, width)
    sizes = max(round(width * scale), size), max(round(height * scale), size)
    return _cv2().resize(im, sizes, interpolation=_cv2().INTER_CUBIC)


def to_chw(im: Any, order: tuple[int, ...] = (2, 0, 1)) -> Any:
    """Colours first."""
    return im.transpose(order)


def center_crop(im: Any, size: int, is_color: bool = True) -> Any:
    """The middle."""
    top, left = (im.shape[0] - size) // 2, (im.shape[1] - size) // 2
    return im[top : top + size, left : left + size]


def random_crop(im: Any, size: int, is_color: bool = True) -> Any:
    """A part somewhere."""
    top = np.random.randint(0, im.shape[0] - size + 1)
    left = np.random.randint(0, im.shape[1] - size + 1)
    return im[top : top + size, left : left + size]


def left_right_flip(im: Any, is_color: bool = True) -> Any:
    """The picture in a mirror."""
    return im[:, ::-1]


def simple_transform(  # noqa: PLR0917 (the order of Paddle)
    im: Any,
    resize_size: int,
    crop_size: int,
    is_train: bool,
    is_color: bool = True,
    mean: Any = None,
) -> Any:
    """Resized, cut out, perhaps mirrored, colours first, less the mean."""
    im = resize_short(im, resize_size)
    if is_train:
        im = random_crop(im, crop_size, is_color)
        if np.random.randint(2) == 0:
            im = left_right_flip(im, is_color)
    else:
        im = center_crop(im, crop_size, is_color)
    im = (to_chw(im) if im.ndim == 3 else im).astype("float32")
    if mean is not None:
        mean = np.asarray(mean, "float32")
        im -= mean[:, None, None] if mean.ndim == 1 and im.ndim == 3 else mean
    return im

"""From the bytes of an image file to the pixels that a network sees, with OpenCV."""

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from fleetx.data.images.views import Box

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
"""Height x width x (red, green, blue)."""

_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""Segments of a JPEG that tell how large it is."""
_BARE = frozenset({0x01, *range(0xD0, 0xD9)})
"""Segments without a length."""


class BrokenImageError(ValueError):
    """The bytes are no complete image."""


def fill(out: Pixels, data: bytes, choose: Callable[[int, int], Box]) -> None:
    """Decode, cut and resize into ``out``.

    Args:
        out: gets the pixels, and says how many there shall be.
        data: the bytes of a JPEG or of any other format that OpenCV knows.
        choose: which part of an image of that width and height.
    """
    import cv2

    size = jpeg_size(data)
    box = choose(*size) if size else None
    reduction = _reduction(box, out.shape) if box else 1
    image = _decoded(data, reduction, is_jpeg=size is not None)
    width, height = size or (image.shape[1], image.shape[0])
    left, top, across, down = box or choose(width, height)
    x, y = image.shape[1] / width, image.shape[0] / height
    rows = _span(top * y, down * y, image.shape[0])
    columns = _span(left * x, across * x, image.shape[1])
    target = (out.shape[1], out.shape[0])
    cv2.resize(image[rows, columns], target, dst=out, interpolation=cv2.INTER_LINEAR)
    cv2.cvtColor(out, cv2.COLOR_BGR2RGB, dst=out)


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Width and height, from the header alone; None for other formats."""
    if data[:2] != b"\xff\xd8":
        return None
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in _SIZES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return (width, height) if width and height else None
        if marker == 0xFF:
            at += 1
        elif marker in _BARE:
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _reduction(box: Box, shape: tuple[int, ...]) -> int:
    """How much smaller the image may be decoded and still be as sharp: 1, 2, 4 or 8.

    A JPEG decodes to a half at a fraction of the cost, and better than by leaving out pixels.
    """
    room = min(box[2] / shape[1], box[3] / shape[0])
    return 1 << max(0, min(3, int(math.log2(room)))) if room >= 1 else 1


def _decoded(data: bytes, reduction: int, *, is_jpeg: bool) -> Pixels:
    import cv2

    flags = {1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2}
    flags |= {4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8}
    # OpenCV fills what is missing of a file with grey and says nothing.
    if is_jpeg and data.rfind(b"\xff\xd9") < len(data) // 2:
        raise BrokenImageError("it ends too early")
    if not data:
        raise BrokenImageError("it is empty")
    buffer = np.frombuffer(data, np.uint8)
    try:
        # The header's size is that of the pixels as they are stored, before any rotation.
        image = cv2.imdecode(buffer, flags[reduction] | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise BrokenImageError(str(error)) from error
    if image is None:
        raise BrokenImageError("OpenCV cannot decode it")
    return image  # type: ignore[return-value]


def _span(start: float, length: float, limit: int) -> slice:
    """Whole pixels, at least one, inside the image."""
    first = max(0, min(round(start), limit - 1))
    return slice(first, max(first + 1, min(round(start + length), limit)))

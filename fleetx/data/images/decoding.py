"""From the bytes of an image file to the pixels that a network sees, with OpenCV."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fleetx.data.images.jpeg import JpegHeader, is_complete, jpeg_header, without_rows_below
from fleetx.data.images.placement import Pixels, lay_pixels
from fleetx.data.images.views import Box

Choose = Callable[[int, int], Box]
"""Which part of an image of that width and height."""


class Part(NamedTuple):
    """Whole pixels of an image that is decoded smaller; right and bottom are the first outside."""

    left: int
    top: int
    right: int
    bottom: int
    reduction: int = 1
    """By how much smaller: 1, 2, 4 or 8."""


class BrokenImageError(ValueError):
    """The bytes are no complete image."""


def fill(out: Pixels, data: bytes, choose: Choose) -> None:
    """Decode, cut and resize into ``out``.

    Args:
        out: gets the pixels, red first, and says how many there shall be.
        data: the bytes of a JPEG or of any other format that OpenCV knows.
        choose: which part of the image.
    """
    lay_pixels(part_of(data, (out.shape[1], out.shape[0]), choose), out)


def part_of(data: bytes, size: tuple[int, int], choose: Choose) -> Pixels:
    """Decode and cut: blue first, and about as large as it is in the file.

    Args:
        data: as above.
        size: the width and height it will have; if much smaller, less is decoded.
        choose: as above.
    """
    header = jpeg_header(data)
    if header is None:
        image = _decoded(data, 1)
        part = chosen_part((image.shape[1], image.shape[0]), choose)
    else:
        part = part_of_jpeg(data, header, size, choose)
        # No more is decoded than that takes.
        rows = part.bottom * part.reduction
        image = _decoded(without_rows_below(data, header, rows, part.reduction), part.reduction)
    found = image[part.top : part.bottom, part.left : part.right]
    if not found.size:
        raise BrokenImageError("it has fewer pixels than its header tells")
    return found


def part_of_jpeg(data: bytes, header: JpegHeader, size: tuple[int, int], choose: Choose) -> Part:
    """Which pixels of a JPEG are seen, and how small it may be decoded for them."""
    # OpenCV fills what is missing of a file with grey and says nothing.
    if not is_complete(data, header):
        raise BrokenImageError("it ends too early")
    return chosen_part((header.width, header.height), choose, size)


def chosen_part(
    image: tuple[int, int], choose: Choose, size: tuple[int, int] | None = None
) -> Part:
    """Whole pixels of an image of that width and height.

    Args:
        image: width and height in the file.
        choose: which part.
        size: what the part is brought to; without it, the image is not decoded smaller.
    """
    left, top, across, down = choose(*image)
    reduction = _reduction(across / size[0], down / size[1]) if size else 1
    width, height = (math.ceil(length / reduction) for length in image)
    # Smaller by a whole number, except for the last pixel of a row or column.
    x, y = width / image[0], height / image[1]
    columns, rows = _span(left * x, across * x, width), _span(top * y, down * y, height)
    return Part(columns[0], rows[0], columns[1], rows[1], reduction)


def _reduction(across: float, down: float) -> int:
    """How much smaller the image may be decoded and still be as sharp: 1, 2, 4 or 8.

    A JPEG decodes to a half at a fraction of the cost, and better than by leaving out pixels.

    Args:
        across: how many times wider the part is than it will be.
        down: how many times higher.
    """
    room = min(across, down)
    return 1 << max(0, min(3, int(math.log2(room)))) if room >= 1 else 1


def _decoded(data: bytes, reduction: int) -> Pixels:
    import cv2

    flags = {1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2}
    flags |= {4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8}
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


def _span(start: float, length: float, limit: int) -> tuple[int, int]:
    """Whole pixels, at least one, inside the image."""
    first = max(0, min(round(start), limit - 1))
    return first, max(first + 1, min(round(start + length), limit))

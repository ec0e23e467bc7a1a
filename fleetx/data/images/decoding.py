"""From the bytes of an image file to the pixels that a network sees, with OpenCV."""

import math
from collections.abc import Callable

import numpy as np

from fleetx.data.images.jpeg import JpegHeader, is_complete, jpeg_header, without_rows_below
from fleetx.data.images.placement import Pixels, lay_pixels
from fleetx.data.images.views import Box

Choose = Callable[[int, int], Box]
"""Which part of an image of that width and height."""


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
    image, box = _part_of_jpeg(data, header, size, choose) if header else _part(data, choose)
    rows = _span(box[1], box[3], image.shape[0])
    return image[rows, _span(box[0], box[2], image.shape[1])]


def _part(data: bytes, choose: Choose) -> tuple[Pixels, Box]:
    """Pixels, and where among them the chosen part is."""
    image = _decoded(data, 1)
    return image, choose(image.shape[1], image.shape[0])


def _part_of_jpeg(
    data: bytes, header: JpegHeader, size: tuple[int, int], choose: Choose
) -> tuple[Pixels, Box]:
    """The same, without decoding more than that takes."""
    # OpenCV fills what is missing of a file with grey and says nothing.
    if not is_complete(data, header):
        raise BrokenImageError("it ends too early")
    left, top, across, down = choose(header.width, header.height)
    reduction = _reduction(across / size[0], down / size[1])
    needed = without_rows_below(data, header, math.ceil(top + down), reduction)
    image = _decoded(needed, reduction)
    # Smaller by a whole number, except for the last pixel of a row or column.
    x = image.shape[1] / header.width
    y = math.ceil(header.height / reduction) / header.height
    return image, (left * x, top * y, across * x, down * y)


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


def _span(start: float, length: float, limit: int) -> slice:
    """Whole pixels, at least one, inside the image."""
    first = max(0, min(round(start), limit - 1))
    return slice(first, max(first + 1, min(round(start + length), limit)))

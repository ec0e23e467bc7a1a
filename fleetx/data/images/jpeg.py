"""What the header of a JPEG tells, and the same JPEG without the rows that nobody looks at."""

import struct
from dataclasses import dataclass

_SIZES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""Segments that tell how large an image is."""
_BASELINE = frozenset({0xC0, 0xC1})
"""Those of images whose rows come one after the other, from top to bottom."""
_BARE = frozenset({0x01, *range(0xD0, 0xD9), 0xFF})
"""Segments without a length, and padding."""
_RESTARTS, _MORE, _SCAN, _END = 0xDD, 0xE2, 0xDA, b"\xff\xd9"
_BROKEN = frozenset({_RESTARTS, _MORE})
"""Segments that tell of markers among the pixels, or of more images behind them."""
_ADOBE, _TRANSFORM = b"Adobe\x00", 11
"""Programs of Adobe write behind their name which numbers the colours are."""
_NO_END = bytes(64)
"""Decoders look a few bytes ahead. One that meets the end early complains of the bytes before it
on standard error; one that meets nothing just stops."""
_MARGIN = 2
"""Colours are stored coarser than light, and a pixel's colour is mixed with that of the next."""


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """Of one image; places are counted in bytes."""

    width: int
    height: int
    frame: int
    """Where the segment with the size begins."""
    pixels: int
    """Where all that is told of the pixels ends, a small image for a preview included."""
    scan: int | None
    """Where the pixels begin, if all of them are in one unbroken run from top to bottom."""


def jpeg_header(data: bytes) -> JpegHeader | None:
    """Width, height and places; None for other formats."""
    if data[:2] != b"\xff\xd8":
        return None
    at, frame, is_run = 2, None, True
    # Ten bytes are as far as anything below reads, ``_header`` included. Each round goes on by one
    # byte at least, whatever length a broken file tells, so that it ends.
    while at + 10 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == _SCAN:
            break
        if marker in _SIZES:
            frame = at
        elif marker in _BROKEN:
            is_run = is_run and marker == _MORE and data[at + 4 : at + 7] != b"MPF"
        if marker in _BARE:
            at += 1 if marker == 0xFF else 2
        else:
            at += 2 + (data[at + 2] << 8 | data[at + 3])
    return None if frame is None else _header(data, frame, at, is_run)


def is_complete(data: bytes, header: JpegHeader) -> bool:
    """Whether the pixels have an end; a file that was cut off has none, wherever that was."""
    return data.rfind(_END) > header.pixels


def is_common(data: bytes, header: JpegHeader) -> bool:
    """Whether it is of the kind that cards decode: rows from top to bottom, 8 bits, grey or YCbCr.

    Of others, decoders on cards do a part on one core of the host, or take red for brightness.
    """
    bits, colours = data[header.frame + 4], data[header.frame + 9]
    if data[header.frame + 1] not in _BASELINE or bits != 8 or colours not in {1, 3}:
        return False
    names = data[header.frame + 10 : header.frame + 10 + 3 * colours : 3]
    told = data.find(_ADOBE, 0, header.pixels)
    return names != b"RGB" and (colours == 1 or told < 0 or data[told + _TRANSFORM] == 1)


def without_rows_below(data: bytes, header: JpegHeader, bottom: int, reduction: int = 1) -> bytes:
    """The image down to the row ``bottom`` at least, pixel for pixel; the whole, if it must be.

    Nothing is decoded for it: a header that promises fewer rows lets any decoder stop there, and
    the code of the rows below is not even read.

    Args:
        data: the file.
        header: its header.
        bottom: in pixels of the file.
        reduction: by how much smaller it will be decoded.
    """
    rows = bottom + _MARGIN * reduction
    if header.scan is None or rows >= header.height:
        return data
    end = data.rfind(_END)
    size = header.frame + 5  # behind the marker, the length and the bits of a colour
    kept = data[size + 2 : end if end > header.scan else None]
    return b"".join((data[:size], struct.pack(">H", rows), kept, _NO_END))


def _header(data: bytes, frame: int, pixels: int, is_run: bool) -> JpegHeader | None:
    height, width, colours = struct.unpack_from(">HHB", data, frame + 5)
    if not (width and height):
        return None
    # Otherwise each colour has a run of its own, or they come in ever finer layers. Taken are the
    # marker and the number of colours in the run; a slice of a file that ends there is shorter.
    together = data[frame + 1] in _BASELINE and is_run and data[pixels + 1 : pixels + 5 : 3]
    is_plain = together == bytes((_SCAN, colours))
    return JpegHeader(width, height, frame, pixels, pixels if is_plain else None)

"""A part of an image goes to its place in a batch: to size, mirrored or not, red first."""

from typing import Any

import numpy as np

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def lay_pixels(part: Pixels, out: Pixels, *, mirrored: bool = False) -> None:
    """Into height x width x (red, green, blue).

    Args:
        part: height x width x (blue, green, red), of any size.
        out: gets the pixels, and says how many there shall be.
        mirrored: left and right change places.
    """
    import cv2

    _resize(part, out)
    if mirrored:
        cv2.flip(out, 1, dst=out)
    cv2.cvtColor(out, cv2.COLOR_BGR2RGB, dst=out)


def lay_planes(part: Pixels, out: Pixels, *, mirrored: bool = False) -> None:
    """Into (red, green, blue) x height x width; OpenCV does that several times as fast as torch."""
    import cv2

    planes = (out[2], out[1], out[0])
    if part.shape[0] < out.shape[1] and part.shape[1] < out.shape[2]:
        # It enlarges colours one by one in half the time, and taken apart they must be anyway.
        seen = cv2.flip(part, 1) if mirrored else part
        for colour, plane in zip(cv2.split(seen), planes, strict=True):
            _resize(colour, plane)  # type: ignore[arg-type]
        return
    crop: Pixels = np.empty((*out.shape[1:], 3), np.uint8)
    _resize(part, crop)
    if mirrored:
        cv2.flip(crop, 1, dst=crop)
    cv2.split(crop, planes)


def _resize(part: Pixels, out: Pixels) -> None:
    import cv2

    cv2.resize(part, (out.shape[1], out.shape[0]), dst=out, interpolation=cv2.INTER_LINEAR)

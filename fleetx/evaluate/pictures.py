"""Inputs as pictures, for a person to look at."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from fleetx.data.images.views import View

Pixels = NDArray[np.uint8]


def png(value: NDArray[np.float32]) -> bytes:
    """A PNG of one input: an image in its colours, anything else as shades of grey."""
    pixels = _pixels(value)
    height, width, channels = pixels.shape
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _pixels(value: NDArray[np.float32]) -> Pixels:
    """Height, width and one or three channels."""
    if value.ndim == 3 and value.shape[0] == 3:
        # As the reader normalised it, backwards.
        planes = value.transpose(1, 2, 0) * np.array(View.image_std) + np.array(View.image_mean)
        colours: Pixels = np.clip(planes * 255, 0, 255).astype(np.uint8)
        return colours
    flat = np.nan_to_num(value.reshape(value.shape[0] if value.ndim > 1 else 1, -1))
    low, high = float(flat.min(initial=0)), float(flat.max(initial=0))
    shades = (flat - low) / (high - low or 1.0) * 255
    # A row of numbers is one pixel high; nobody would see it.
    tall = np.repeat(shades.astype(np.uint8), max(1, 32 // len(shades)), axis=0)
    return tall[:, :, None]


def _chunk(kind: bytes, data: bytes) -> bytes:
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

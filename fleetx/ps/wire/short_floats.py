"""Floats of two bytes on the wire: rows and their gradients in half the bytes.

Tables keep float32. What is lost is a rounding: of a row as a worker sees it, and of a gradient as
the servers see it; neither adds up in the table.
"""

import numpy as np
import torch

from fleetx.ps.wire.arrays import Array, Floats, all_finite
from fleetx.ps.wire.frames import SHORT, Flag

SHORT_DTYPES = {"float16": Flag.FLOAT16, "bfloat16": Flag.BFLOAT16}
_LARGEST = float(np.finfo(np.float16).max)


def check_wire_dtype(name: str, dtype: str | None) -> None:
    """Refuse what numbers cannot be sent as."""
    if dtype is not None and dtype not in SHORT_DTYPES:
        raise ValueError(
            f"wire={dtype!r} of table {name!r} is not known; use 'float16', 'bfloat16', or None "
            "for float32"
        )


def shortened(values: Floats, flags: int) -> Array:
    """What travels: the values, or bits of their short dtype."""
    if not flags & SHORT:
        return values
    if flags & Flag.FLOAT16:
        # An infinity would stay in the row for ever; the largest number is what was meant.
        clipped = np.clip(values, -_LARGEST, _LARGEST)
        if not all_finite(values):  # what was infinite before is not, so that servers notice
            clipped = np.where(np.isinf(values), values, clipped)
        return clipped.astype(np.float16).view(np.int16)
    bits: Array = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    return bits


def widened(bits: Array, flags: int) -> Floats:
    """The float32 values of short ones."""
    assert flags & SHORT
    if flags & Flag.FLOAT16:
        return bits.view(np.float16).astype(np.float32)
    return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def rounded(values: Floats, flags: int) -> Floats:
    """The values as they arrive."""
    return widened(shortened(values, flags), flags) if flags & SHORT else values


def width_of(flags: int) -> int:
    """Bytes of one number."""
    return 2 if flags & SHORT else 4

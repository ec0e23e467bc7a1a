"""The kinds of arrays that travel and are stored."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Words = NDArray[np.uint64]
Floats = NDArray[np.float32]
Array = NDArray[Any]


def same_ids(some: Array, others: Array) -> bool:
    """Whether two flat lists are equal; those that differ mostly do so in their first entries."""
    begin = slice(16)
    return np.array_equal(some[begin], others[begin]) and np.array_equal(some, others)


def all_finite(values: Array) -> bool:
    """Whether no number is infinite or none at all; one pass, as long as that is so."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.sum(values))  # which may overflow by itself
    return math.isfinite(total) or bool(np.isfinite(values).all())

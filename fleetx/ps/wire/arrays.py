"""The kinds of arrays that travel and are stored."""

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

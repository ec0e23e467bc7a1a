"""One hash of ids, from which places in tables, servers and initial values all follow."""

import numpy as np
from numpy.typing import NDArray

from fleetx.ps.wire.arrays import Array, Ids, Words

FIRST = 0xFF51AFD7ED558CCD
SECOND = 0xC4CEB9FE1A85EC53
STRIDE = 0x9E3779B97F4A7C15
"""An odd number near 2**64 divided by the golden ratio: multiples of it are spread evenly."""


def mixed(ids: Array) -> Words:
    """64 bits of which every one depends on every bit of the id; no two ids share them."""
    words = ids.astype(np.uint64)  # a copy, which the rest works on in place
    for factor in (FIRST, SECOND):
        words ^= words >> np.uint64(33)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(33)
    return words


def servers_of(ids: Ids, servers: int) -> Ids:
    """The server of each id. The low half decides, for tables use the high half."""
    low = mixed(ids) & np.uint64(0xFFFFFFFF)
    return ((low * np.uint64(servers)) >> np.uint64(32)).astype(np.int64)


def parts_of(ids: Ids, bits: int) -> Ids:
    """Which of ``2**bits`` equal parts of the hash range each id falls into."""
    return (mixed(ids) >> np.uint64(64 - bits)).astype(np.int64)


def among(ids: Ids, others: Ids) -> Array:
    """Whether each id is one of the others.

    What ``np.isin`` says; that one takes 15 times as long for some thousands of such numbers.
    """
    if not len(others):
        return np.zeros(len(ids), bool)
    ordered = np.sort(others)
    found: Array = ordered[np.searchsorted(ordered, ids) % len(ordered)] == ids
    return found


def uniform(ids: Ids, columns: int, seed: int) -> NDArray[np.float64]:
    """Numbers in [0, 1) that depend on the id, the column and the seed, and on nothing else."""
    # Seeds go through the hash as well, or neighbouring seeds would give shifted columns.
    salt = mixed(np.array([seed], np.int64))
    start = mixed(ids)[:, None] + salt
    steps = np.arange(1, columns + 1, dtype=np.uint64) * np.uint64(STRIDE)
    return (mixed(start + steps) >> np.uint64(11)).astype(np.float64) / (1 << 53)

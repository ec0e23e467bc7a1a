"""The index of a table, compiled: from ids to rows; ``numpy_kernels`` says what each does.

Places are unsigned where they are added up: for signed ones numba would look at each whether it is
negative and counts from the end.
"""

from typing import Any

import numpy as np

from fleetx.ps.tables.kernels.numba_base import AHEAD, compiled, inlined, mix, prefetch
from fleetx.ps.tables.kernels.numpy_kernels import PLACES, SLOT
from fleetx.ps.wire.arrays import Ids

BEARS_DENSE = True
SOME = 1 << 12
"""Pairs for which there is room beside an index that grows, at first."""


@inlined
def _home(value: Any, places: Any) -> Any:
    lines = np.uint64(places // PLACES)
    return np.int64(((mix(value) >> np.uint64(32)) * lines) >> np.uint64(32)) * PLACES


@compiled
def _sought(pairs: Any, line: Any, value: Any) -> Any:
    """Where the pair of an id is, or a free place."""
    two, four, six = np.uint64(2), np.uint64(4), np.uint64(6)
    # All four of the line without a branch, which would be guessed wrongly every other time. The
    # first one that fits counts: free places hold 0, as does the place of the id 0 before them.
    at = line + six
    at = line + four if pairs[line + four] == value else at
    at = line + two if pairs[line + two] == value else at
    at = line if pairs[line] == value else at
    if pairs[at] == value:
        return at
    at = line
    while pairs[at + np.uint64(1)] >= 0 and pairs[at] != value:
        at += two
    return at


@compiled
def find(pairs: Ids, places: int, ids: Ids, slots: Ids, keep: int, stamp: int) -> int:
    n, missing = ids.shape[0], 0
    # Until its id is looked for, the place of a slot holds the line in which that begins. Nobody
    # else sees it: the caller made the array for this call.
    for i in range(-AHEAD, n):
        if i + AHEAD < n:
            line = 2 * _home(ids[i + AHEAD], places)
            slots[i + AHEAD] = line
            prefetch(pairs, line)
        if i < 0:
            continue
        at = _sought(pairs, np.uint64(slots[i]), ids[i])
        word = pairs[at + np.uint64(1)]
        if word >= 0:
            slots[i] = word & SLOT
            stamped = (word & keep) | stamp
            if stamped != word:
                pairs[at + np.uint64(1)] = stamped
        else:
            slots[i] = -1
            missing += 1
    return missing


@compiled
def insert(pairs: Ids, places: int, ids: Ids, words: Ids) -> int:
    n, last = ids.shape[0], pairs.shape[0] // 2 - 1
    for i in range(n):
        if i + AHEAD < n:
            prefetch(pairs, 2 * _home(ids[i + AHEAD], places))
        at = _home(ids[i], places)
        while at < last and pairs[2 * at + 1] >= 0:
            at += 1
        if at == last:
            return i
        pairs[2 * at] = ids[i]
        pairs[2 * at + 1] = words[i]
    return n


@compiled
def _expand(pairs: Ids, before: int, places: int, left: Ids, count: int) -> int:
    total = pairs.shape[0] // 2
    for i in range(before - 1, -1, -1):
        word = pairs[2 * i + 1]
        if word < 0:
            continue
        if 2 * count == left.shape[0]:
            return -1 - i
        key = pairs[2 * i]
        pairs[2 * i], pairs[2 * i + 1] = 0, -1
        at = _home(key, places)
        # All behind this place have gone to their new homes, all before it have not.
        if at > i:
            while at < total - 1 and pairs[2 * at + 1] >= 0:
                at += 1
            if at < total - 1:
                pairs[2 * at], pairs[2 * at + 1] = key, word
                continue
        left[2 * count], left[2 * count + 1] = key, word
        count += 1
    return count


def expand(pairs: Ids, before: int, places: int) -> tuple[Ids, Ids]:
    # Few are left: those so near to the beginning that their new homes are not behind them.
    left, count = np.empty(2 * SOME, np.int64), 0
    while (done := _expand(pairs, before, places, left, count)) < 0:
        before, count = -done, len(left) // 2
        left = np.concatenate([left, np.empty_like(left)])
    return left[0 : 2 * done : 2].copy(), left[1 : 2 * done : 2].copy()

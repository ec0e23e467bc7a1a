"""The index of a table, compiled: from ids to rows; ``numpy_kernels`` says what each does.

Places are unsigned where they are added up: for signed ones numba would look at each whether it is
negative and counts from the end.
"""

from typing import Any

import numpy as np

from fleetx.ps.tables.kernels.numba_base import AHEAD, compiled, inlined, mix, prefetch
from fleetx.ps.tables.kernels.numpy_kernels import PLACES, SLOT
from fleetx.ps.wire.arrays import Array, Ids

BEARS_DENSE = True
STEP = 1 << 10
"""Places that an index which grows goes through at once."""


@inlined
def _line(value: Any, lines: Any) -> Any:
    return ((mix(value) >> np.uint64(32)) * lines) >> np.uint64(32)


@inlined
def _home(value: Any, places: Any) -> Any:
    return np.int64(_line(value, np.uint64(places // PLACES))) * PLACES


@compiled
def _find_lines(ids: Ids, places: int, lines: Ids, count: int) -> None:
    """Where the search for each id begins. A loop of its own: it hashes several ids at once."""
    number = np.uint64(places // PLACES)
    for i in range(np.uint64(count)):
        lines[i] = np.int64(_line(ids[i], number))


@compiled
def _sought(pairs: Any, line: Any, value: Any) -> Any:
    """Where the pair of an id is, or a free place."""
    one, two, four, six = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(6)
    # All four of the line without a branch, which would be guessed wrongly every other time. The
    # first one that fits counts: free places hold 0, as does the place of the id 0 before them.
    at = line + six
    at = line + four if pairs[line + four] == value else at
    at = line + two if pairs[line + two] == value else at
    at = line if pairs[line] == value else at
    if pairs[at] == value:
        return at
    at = line + six
    at = line + four if pairs[line + four + one] < 0 else at
    at = line + two if pairs[line + two + one] < 0 else at
    at = line if pairs[line + one] < 0 else at
    if pairs[at + one] < 0:
        return at
    at += two
    while pairs[at + one] >= 0 and pairs[at] != value:
        at += two
    return at


@compiled
def find(pairs: Ids, places: int, ids: Ids, slots: Ids, keep: int, stamp: int) -> int:
    n, missing = ids.shape[0], 0
    # Until its id is looked for, the place of a slot holds the line in which that begins. Nobody
    # else sees it: the caller made the array for this call.
    _find_lines(ids, places, slots, n)
    for i in range(-AHEAD, n):
        if i + AHEAD < n:
            prefetch(pairs, 2 * PLACES * slots[i + AHEAD])
        if i < 0:
            continue
        at = _sought(pairs, np.uint64(2 * PLACES * slots[i]), ids[i])
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
def meet(
    pairs: Ids,
    places: int,
    ids: Ids,
    slots: Ids,
    keep: int,
    stamp: int,
    word: int,
    free: Ids,
    used: int,
    room: int,
    new: Ids,
) -> tuple[int, int]:
    n, count, last, spare = ids.shape[0], 0, np.uint64(pairs.shape[0] - 2), free.shape[0]
    _find_lines(ids, places, slots, n)
    for i in range(-AHEAD, n):
        if i + AHEAD < n:
            prefetch(pairs, 2 * PLACES * slots[i + AHEAD])
        if i < 0:
            continue
        at = _sought(pairs, np.uint64(2 * PLACES * slots[i]), ids[i])
        known = pairs[at + np.uint64(1)]
        if known >= 0:
            slots[i] = known & SLOT
            stamped = (known & keep) | stamp
            if stamped != known:
                pairs[at + np.uint64(1)] = stamped
            continue
        if count == room or at == last:
            return i, count
        slot = free[spare - 1 - count] if count < spare else used + count - spare
        pairs[at], pairs[at + np.uint64(1)] = ids[i], slot | word
        slots[i], new[count] = slot, i
        count += 1
    return n, count


@compiled
def remove(pairs: Ids, places: int, ids: Ids) -> None:
    n, lines, one, two = ids.shape[0], np.uint64(places // PLACES), np.uint64(1), np.uint64(2)
    for i in range(n):
        if i + AHEAD < n:
            prefetch(pairs, 2 * _home(ids[i + AHEAD], places))
        hole = _sought(pairs, np.uint64(2 * PLACES) * _line(ids[i], lines), ids[i])
        at = hole + two
        while pairs[at + one] >= 0:
            if np.uint64(2 * PLACES) * _line(pairs[at], lines) <= hole:
                pairs[hole], pairs[hole + one] = pairs[at], pairs[at + one]
                hole = at
            at += two
        pairs[hole], pairs[hole + one] = 0, -1


@compiled
def _take_out(pairs: Ids, begin: int, end: int, keys: Ids, words: Ids) -> int:
    """Free all places of a range; returns how many pairs there were."""
    count, one = np.uint64(0), np.uint64(1)
    for i in range(np.uint64(begin), np.uint64(end)):
        at = i + i
        # Written whether or not there is a pair: a branch would be guessed wrongly too often.
        word = pairs[at + one]
        keys[count], words[count] = pairs[at], word
        count += np.uint64(word >= 0)
        pairs[at], pairs[at + one] = 0, -1
    return np.int64(count)


@compiled
def _put_in(
    pairs: Ids, first: int, counts: Array, keys: Ids, words: Ids, lines: Ids, taken: int
) -> int:
    """Give pairs the next places of their lines, which are empty; returns how many found none.

    Those are at the beginnings of the three arrays then.
    """
    over, span, counts[:] = np.uint64(0), np.uint64(counts.shape[0]), 0
    for i in range(np.uint64(taken)):
        line = np.uint64(lines[i] - first)  # far behind the span if it would be negative
        if line < span and counts[line] < PLACES:
            at = np.uint64(2) * np.uint64(PLACES * lines[i] + counts[line])
            counts[line] += 1
            pairs[at], pairs[at + np.uint64(1)] = keys[i], words[i]
        else:
            keys[over], words[over], lines[over] = keys[i], words[i], lines[i]
            over += np.uint64(1)
    return np.int64(over)


@compiled
def _expand(
    pairs: Ids,
    before: int,
    old: int,
    places: int,
    keys: Ids,
    words: Ids,
    lines: Ids,
    counts: Array,
    left: Ids,
) -> int:
    count, total, step, settled = 0, pairs.shape[0] // 2, lines.shape[0], places // PLACES
    for number in range((before - 1) // step, -1, -1):
        begin, end = number * step, min(before, number * step + step)
        taken = _take_out(pairs, begin, end, keys, words)
        _find_lines(keys, places, lines, taken)
        # Homes keep their order: those of this range end before the first line of the next one,
        # which is settled, and few are before the first line of this one.
        first = -(-(begin // PLACES) * (places // PLACES) // (old // PLACES))
        for i in range(_put_in(pairs, first, counts, keys, words, lines, taken)):
            # Counts tell of four places at once, and are nearer than these.
            line = lines[i] if lines[i] >= first else total // PLACES
            while line < settled and counts[line - first] == PLACES:
                line += 1
            at = min(PLACES * line, total - 1)
            if line < settled:
                at += counts[line - first]
                counts[line - first] += 1
            while at < total - 1 and pairs[2 * at + 1] >= 0:
                at += 1
            if at < total - 1:
                pairs[2 * at], pairs[2 * at + 1] = keys[i], words[i]
            else:
                left[2 * count], left[2 * count + 1] = keys[i], words[i]
                count += 1
        settled = first
    return count


def expand(pairs: Ids, before: int, old: int, places: int) -> tuple[Ids, Ids]:
    # A range at a time is taken out and put in again, in the near caches. Counts of its lines tell
    # where, so that no place has to be looked at.
    keys, words, lines = (np.empty(STEP + more, np.int64) for more in (1, 1, 0))
    counts = np.empty(STEP // PLACES * places // old + 2, np.int8)
    # Few are left: those whose line was full, so that they were in another range than their line.
    # There is room for all of them, but only memory that is written to is taken.
    left = np.empty(2 * before, np.int64)
    count = _expand(pairs, before, old, places, keys, words, lines, counts, left)
    return left[0 : 2 * count : 2].copy(), left[1 : 2 * count : 2].copy()

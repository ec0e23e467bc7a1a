"""Rows of a table, compiled: reading, updating; ``numpy_kernels`` says what each does.

All arrays must be contiguous, which those of an arena and those that came in a frame are.
"""

from typing import Any

import numpy as np

from fleetx.ps.tables.hashing import STRIDE
from fleetx.ps.tables.kernels.numba_base import AHEAD, LINE, compiled, inlined, mix, prefetch
from fleetx.ps.wire.arrays import Array, Floats, Ids

NEAR = 8
"""Like AHEAD, for updates that take longer for a row and hold twice as many cache lines."""


@compiled
def _gather(rows: Floats, slots: Ids, out: Floats) -> None:
    n, d = out.shape
    flat, wide = rows.reshape(-1), rows.shape[1]
    for i in range(n):
        if i + AHEAD < n:
            for k in range(0, d, LINE):
                prefetch(flat, slots[i + AHEAD] * wide + k)
        # Views of single rows: the compiler sees that indexes are in order and uses vectors.
        row, to = rows[slots[i]], out[i]
        for j in range(d):
            to[j] = row[j]


@inlined
def _copy_line(source: Any, at: Any, target: Any, to: Any) -> None:
    a, b = source[at], source[at + np.uint64(1)]
    c, d = source[at + np.uint64(2)], source[at + np.uint64(3)]
    e, f = source[at + np.uint64(4)], source[at + np.uint64(5)]
    g, h = source[at + np.uint64(6)], source[at + np.uint64(7)]
    target[to], target[to + np.uint64(1)] = a, b
    target[to + np.uint64(2)], target[to + np.uint64(3)] = c, d
    target[to + np.uint64(4)], target[to + np.uint64(5)] = e, f
    target[to + np.uint64(6)], target[to + np.uint64(7)] = g, h


@compiled
def _gather_lines(rows: Floats, slots: Ids, out: Floats) -> None:
    # Two floats at a time, as one number that nobody computes with. Both arrays begin where eight
    # bytes begin: an arena at a page, a reply at a cache line, other arrays where numpy puts them.
    n, words, wide = out.shape[0], out.shape[1] // 2, rows.shape[1] // 2
    source, target = rows.reshape(-1).view(np.int64), out.reshape(-1).view(np.int64)
    for i in range(n):
        if i + AHEAD < n:
            for k in range(0, words, LINE // 2):
                prefetch(source, slots[i + AHEAD] * wide + k)
        at, to = np.uint64(max(slots[i], 0) * wide), np.uint64(i * words)
        for k in range(0, words, LINE // 2):
            _copy_line(source, at + np.uint64(k), target, to + np.uint64(k))


@compiled
def clear(slots: Ids, out: Floats) -> None:
    for i in range(slots.shape[0]):
        if slots[i] < 0:
            out[i] = np.float32(0)


@compiled
def gather(rows: Floats, slots: Ids, out: Floats) -> None:
    # -1 reads some row, which costs less than asking: the first one by lines, else the last one.
    # A table without rows has memory for some, so there is one to read; ``clear`` wipes it.
    if out.shape[1] % LINE == 0 and rows.shape[1] % 2 == 0:
        _gather_lines(rows, slots, out)
    else:
        _gather(rows, slots, out)


@compiled
def copy_out(rows: Array, begin: int, slots: Ids, out: Array, at: int, width: int) -> None:
    n, source, target = slots.shape[0], rows.reshape(-1), out.reshape(-1)
    wide, far = rows.shape[1], out.shape[1]
    for i in range(n):
        if i + AHEAD < n:
            for k in range(0, width, 4 * LINE):
                prefetch(source, slots[i + AHEAD] * wide + begin + k)
        s, t = np.uint64(slots[i] * wide + begin), np.uint64(i * far + at)
        for j in range(np.uint64(width)):
            target[t + j] = source[s + j]


@compiled
def copy_in(rows: Array, begin: int, slots: Ids, given: Array, at: int, width: int) -> None:
    n, target, source = slots.shape[0], rows.reshape(-1), given.reshape(-1)
    wide, far = rows.shape[1], given.shape[1]
    for i in range(n):
        if i + AHEAD < n:
            for k in range(0, width, 4 * LINE):
                prefetch(target, slots[i + AHEAD] * wide + begin + k)
        t, s = np.uint64(slots[i] * wide + begin), np.uint64(i * far + at)
        for j in range(np.uint64(width)):
            target[t + j] = source[s + j]


@compiled
def fill_uniform(
    rows: Floats, slots: Ids, ids: Ids, columns: int, seed: int, low: float, high: float
) -> None:
    # The same operations in the same order as those of numpy: every engine makes the same rows.
    flat, wide, salt, span = rows.reshape(-1), rows.shape[1], mix(seed), high - low
    for i in range(slots.shape[0]):
        to, state = np.uint64(slots[i] * wide), mix(ids[i]) + salt
        for j in range(np.uint64(columns)):
            state += np.uint64(STRIDE)
            draw = np.float64(np.int64(mix(state) >> np.uint64(11))) / (1 << 53)
            flat[to + j] = np.float32(low + span * draw)


@compiled
def add(rows: Floats, slots: Ids, delta: Floats) -> None:
    sgd(rows, slots, delta, -1.0)


@compiled
def find_differing(marks: Array, slots: Ids, value: int, leave: bool, out: Ids) -> int:
    count = 0
    for i in range(slots.shape[0]):
        if marks[slots[i]] != value:
            if not leave:
                marks[slots[i]] = value
            out[count] = i
            count += 1
    return count


@compiled
def differences(rows: Floats, before: Floats, slots: Ids, share: float, out: Floats) -> None:
    n, d = out.shape
    factor = np.float32(share)
    for i in range(n):
        row, base, to = rows[slots[i]], before[slots[i]], out[i]
        for j in range(d):
            to[j] = (row[j] - base[j]) * factor


@compiled
def renew(rows: Floats, before: Floats, slots: Ids, weights: Floats) -> None:
    n, d = weights.shape
    for i in range(n):
        row, base, new = rows[slots[i]], before[slots[i]], weights[i]
        for j in range(d):
            row[j] += new[j] - base[j]
            base[j] = new[j]


# These reach rows by places in one long array, which costs half of making a view of each row. The
# places have no sign: it would be looked at for each number, and no vectors would be used. So a
# slot of -1 would be a place far outside of the array: callers leave out ids that have no row.


@compiled
def sgd(rows: Floats, slots: Ids, gradients: Floats, rate: float) -> None:
    n, d = gradients.shape
    flat, given, wide, r = rows.reshape(-1), gradients.reshape(-1), rows.shape[1], np.float32(rate)
    for i in range(n):
        if i + AHEAD < n:
            for k in range(0, d, LINE):
                prefetch(flat, slots[i + AHEAD] * wide + k)
        w, g = np.uint64(slots[i] * wide), np.uint64(i * d)
        for j in range(np.uint64(d)):
            flat[w + j] -= r * given[g + j]


@compiled
def adagrad(
    rows: Floats,
    state: Floats,
    begin: int,
    slots: Ids,
    gradients: Floats,
    rate: float,
    eps: float,
) -> None:
    n, d = gradients.shape
    flat, totals, given = rows.reshape(-1), state.reshape(-1), gradients.reshape(-1)
    wide, far = rows.shape[1], state.shape[1]
    r, e = np.float32(rate), np.float32(eps)
    for i in range(n):
        if i + NEAR < n:
            for k in range(0, d, LINE):
                prefetch(flat, slots[i + NEAR] * wide + k)
                prefetch(totals, slots[i + NEAR] * far + begin + k)
        w, s, g = np.uint64(slots[i] * wide), np.uint64(slots[i] * far + begin), np.uint64(i * d)
        for j in range(np.uint64(d)):
            gradient = given[g + j]
            total = totals[s + j] + gradient * gradient
            totals[s + j] = total
            flat[w + j] -= r * gradient / (np.sqrt(total) + e)


@compiled
def adam(
    rows: Floats,
    state: Floats,
    begin: int,
    slots: Ids,
    gradients: Floats,
    rate: float,
    first: float,
    second: float,
    eps: float,
    corrections: Floats,
) -> None:
    n, d = gradients.shape
    flat, moments, given = rows.reshape(-1), state.reshape(-1), gradients.reshape(-1)
    wide, far, known = rows.shape[1], state.shape[1], corrections.shape[0]
    b1, b2, e = np.float32(first), np.float32(second), np.float32(eps)
    c1, c2 = np.float32(1 - first), np.float32(1 - second)
    for i in range(n):
        if i + NEAR < n:
            for k in range(0, d, LINE):
                prefetch(flat, slots[i + NEAR] * wide + k)
            for k in range(0, 2 * d + 1, LINE):
                prefetch(moments, slots[i + NEAR] * far + begin + k)
        w, g = np.uint64(slots[i] * wide), np.uint64(i * d)
        m = np.uint64(slots[i] * far + begin)
        v = m + np.uint64(d)
        step = moments[v + np.uint64(d)] + np.float32(1)
        moments[v + np.uint64(d)] = step
        # Powers of a step cost more than all the rest of a short row.
        at = np.int64(step)
        if at < known:
            short, root = np.float32(rate * corrections[at, 0]), np.float32(corrections[at, 1])
        else:
            short = np.float32(rate / (1 - first ** np.float64(step)))
            root = np.float32(1 / np.sqrt(1 - second ** np.float64(step)))
        for j in range(np.uint64(d)):
            gradient = given[g + j]
            mean = b1 * moments[m + j] + c1 * gradient
            square = b2 * moments[v + j] + c2 * gradient * gradient
            moments[m + j] = mean
            moments[v + j] = square
            flat[w + j] -= short * mean / (np.sqrt(square) * root + e)

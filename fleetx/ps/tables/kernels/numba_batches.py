"""Batches of a worker, compiled: ids once each, and rows summed; see ``numpy_kernels``."""

from typing import Any

import numpy as np

from fleetx.ps.tables.kernels.numba_base import allocating, compiled, inlined, mix
from fleetx.ps.wire.arrays import Floats, Ids


@inlined
def _copy_half_line(source: Any, at: Any, target: Any, to: Any) -> None:
    # All loads before all stores: they need not wait to learn that the two do not overlap.
    a, b = source[at], source[at + np.uint64(1)]
    c, d = source[at + np.uint64(2)], source[at + np.uint64(3)]
    target[to], target[to + np.uint64(1)] = a, b
    target[to + np.uint64(2)], target[to + np.uint64(3)] = c, d


@allocating
def _unique(ids: Ids) -> tuple[Ids, Ids]:
    """The ids in the order of their first places, and where each of them is among these."""
    n, places, count = ids.shape[0], 2, 0
    while places < 2 * n:
        places *= 2
    # Short numbers: the table stays in a near cache, and all of the time is spent in it. They are
    # long enough: a batch of two thousand million ids would take 16 GiB. At most half of the table
    # is taken, so every search ends at a free place.
    seen, inverse = np.full(places, -1, np.int32), np.empty(n, np.int64)
    unique, last = np.empty(n, np.int64), np.uint64(places - 1)
    for i in range(n):
        value = ids[i]
        at = (mix(value) >> np.uint64(32)) & last
        number = seen[at]
        while number >= 0 and unique[number] != value:
            at = (at + np.uint64(1)) & last
            number = seen[at]
        if number < 0:
            number = count
            seen[at] = number
            unique[number] = value
            count += 1
        inverse[i] = number
    return unique[:count], inverse


@allocating
def dedupe(ids: Ids, servers: int) -> tuple[Ids, Ids, Ids]:
    unique, inverse = _unique(ids)
    count, begins = unique.shape[0], np.zeros(servers + 1, np.int64)
    if servers == 1:
        begins[1] = count
        return unique, begins, inverse
    route = np.empty(count, np.int32)
    for i in range(count):
        low = mix(unique[i]) & np.uint64(0xFFFFFFFF)
        route[i] = np.int32((low * np.uint64(servers)) >> np.uint64(32))
        begins[route[i] + 1] += 1
    for k in range(servers):
        begins[k + 1] += begins[k]
    fill, place, sorted_ = begins.copy(), np.empty(count, np.int64), np.empty(count, np.int64)
    for i in range(count):
        place[i] = fill[route[i]]
        sorted_[place[i]] = unique[i]
        fill[route[i]] += 1
    for i in range(ids.shape[0]):
        inverse[i] = place[inverse[i]]
    return sorted_, begins, inverse


@compiled
def sum_rows(rows: Floats, targets: Ids, out: Floats) -> None:
    n, d = rows.shape
    for i in range(n):
        source, to = rows[i], out[targets[i]]
        for j in range(d):
            to[j] += source[j]


@compiled
def pick(rows: Floats, places: Ids, out: Floats) -> None:
    n, d = out.shape
    if d % 8:
        for i in range(n):
            row, to = rows[places[i]], out[i]
            for j in range(d):
                to[j] = row[j]
        return
    # As in numba_rows: two floats as one number, four such numbers for each half of a cache line.
    half = d // 2
    source, target = rows.reshape(-1).view(np.int64), out.reshape(-1).view(np.int64)
    for i in range(n):
        at, to_ = np.uint64(places[i] * half), np.uint64(i * half)
        for _ in range(half // 4):
            _copy_half_line(source, at, target, to_)
            at, to_ = at + np.uint64(4), to_ + np.uint64(4)


@compiled
def pool_rows(rows: Floats, sources: Ids, targets: Ids, out: Floats) -> None:
    n, d = sources.shape[0], rows.shape[1]
    if d == 1 and n:
        ones, sums = rows.reshape(-1), out.reshape(-1)
        # Those of one bag mostly come one behind the other: their sum waits in a register.
        last, total = targets[0], sums[targets[0]]
        for i in range(n):
            if targets[i] != last:
                sums[last] = total
                last = targets[i]
                total = sums[last]
            total += ones[sources[i]]
        sums[last] = total
        return
    for i in range(n):
        source, to = rows[sources[i]], out[targets[i]]
        for j in range(d):
            to[j] += source[j]

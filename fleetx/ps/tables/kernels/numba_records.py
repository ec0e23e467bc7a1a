"""Records in the order of the hashes of their ids, compiled; see ``numpy_records``."""

from typing import Any

import numpy as np

from fleetx.ps.tables.kernels.numba_base import compiled, inlined, mix, prefetch
from fleetx.ps.wire.arrays import Ids

NEAR = 8
"""Records between the one that is worked on and the one that is asked for from memory."""


@inlined
def _home(value: Any, places: Any) -> Any:
    return np.int64(((mix(value) >> np.uint64(32)) * np.uint64(places)) >> np.uint64(32))


@compiled
def _sought(flat: Any, wide: Any, at: Any, value: Any) -> Any:
    """Where the record of an id is, or a free place."""
    while flat[at * wide + np.uint64(1)] & 1 and flat[at * wide] != value:
        at += np.uint64(1)
    return at


@compiled
def find_records(table: Ids, places: int, ids: Ids, at: Ids) -> int:
    n, found, flat, wide = ids.shape[0], 0, table.reshape(-1), np.uint64(table.shape[1])
    for i in range(-NEAR, n):
        if i + NEAR < n:
            at[i + NEAR] = _home(ids[i + NEAR], places)
            prefetch(flat, at[i + NEAR] * np.int64(wide))
        if i < 0:
            continue
        place = _sought(flat, wide, np.uint64(at[i]), ids[i])
        known = flat[place * wide + np.uint64(1)] & 1
        at[i] = np.int64(place) if known else -1
        found += known
    return found


@compiled
def put_records(table: Ids, places: int, records: Ids) -> tuple[int, bool]:
    n, added, last = records.shape[0], 0, np.uint64(table.shape[0] - 1)
    flat, given, wide = table.reshape(-1), records.reshape(-1), np.uint64(table.shape[1])
    for i in range(n):
        if i + NEAR < n:
            prefetch(flat, _home(records[i + NEAR, 0], places) * np.int64(wide))
        value = records[i, 0]
        place = _sought(flat, wide, np.uint64(_home(value, places)), value)
        if place == last:
            return added, False
        added += 1 - (flat[place * wide + np.uint64(1)] & 1)
        begin, source = place * wide, np.uint64(i) * wide
        for j in range(wide):
            flat[begin + j] = given[source + j]
        flat[begin + np.uint64(1)] |= 1
    return added, True


@compiled
def _close_gap(table: Ids, places: int, gap: int) -> None:
    """Let records behind a place that was freed come nearer to their homes."""
    at = gap + 1
    while table[at, 1] & 1:
        if _home(table[at, 0], places) <= gap:
            for j in range(table.shape[1]):
                table[gap, j] = table[at, j]
            table[at, 1] = 0
            gap = at
        at += 1


@compiled
def delete_records(table: Ids, places: int, ids: Ids) -> int:
    flat, wide, gone = table.reshape(-1), np.uint64(table.shape[1]), 0
    for i in range(ids.shape[0]):
        at = np.int64(_sought(flat, wide, np.uint64(_home(ids[i], places)), ids[i]))
        if table[at, 1] & 1:
            table[at, 1] = 0
            _close_gap(table, places, at)
            gone += 1
    return gone


@compiled
def _take_out(table: Ids, begin: int, end: int, held: Ids) -> int:
    taken = 0
    for at in range(begin, end):
        if table[at, 1] & 1:
            for j in range(table.shape[1]):
                held[taken, j] = table[at, j]
            table[at, 1] = 0
            taken += 1
    return taken


@compiled
def move_records(table: Ids, begin: int, end: int, places: int, held: Ids) -> int:
    left, last, wide = 0, table.shape[0] - 1, table.shape[1]
    for i in range(_take_out(table, begin, end, held)):
        home = _home(held[i, 0], places)
        at = home if home >= begin else last
        while at < last and table[at, 1] & 1:
            at += 1
        if at < last:
            for j in range(wide):
                table[at, j] = held[i, j]
        else:
            for j in range(wide):
                held[left, j] = held[i, j]
            left += 1
    return left

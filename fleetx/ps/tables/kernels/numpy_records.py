"""Records of rows in the order of the hashes of their ids, in numpy, for machines without numba.

A table of records has a place in each of its lines: the first number is the id, the second one has
its lowest bit set where the place is taken. Places are probed one after the other from an id's
home; the last place is always free, so no probe leaves the table. Homes grow with the hash.
"""

import numpy as np

from fleetx.ps.tables.hashing import mixed
from fleetx.ps.wire.arrays import Ids, Words


def record_homes(hashes: Words, places: int) -> Ids:
    """The place where the search for each hash begins."""
    return (((hashes >> np.uint64(32)) * np.uint64(places)) >> np.uint64(32)).astype(np.int64)


def find_records(table: Ids, places: int, ids: Ids, at: Ids) -> int:
    """Fill in the place of each id, or -1; returns how many have one."""
    at[:] = record_homes(mixed(ids), places)
    _go_on(table, ids, at)
    at[table[at, 1] & 1 == 0] = -1
    return int((at >= 0).sum())


def _go_on(table: Ids, ids: Ids, at: Ids) -> None:
    """From these places on, where the record of each id is, or a free place."""
    open_ = np.arange(len(ids))
    while len(open_):
        here = at[open_]
        open_ = open_[((table[here, 1] & 1) == 1) & (table[here, 0] != ids[open_])]
        at[open_] += 1


def put_records(table: Ids, places: int, records: Ids) -> tuple[int, bool]:
    """Keep records of different ids, in the place of those of the same ids.

    Returns:
        How many of the ids were new, and whether all are kept: else the end was reached.
    """
    at, added = record_homes(mixed(records[:, 0]), places), 0
    while len(records):
        _go_on(table, records[:, 0], at)
        if (at == len(table) - 1).any():
            return added, False
        # Of several that want one free place the first one gets it; the others go on.
        _, first = np.unique(at, return_index=True)
        added += int((table[at[first], 1] & 1 == 0).sum())
        table[at[first]] = records[first]
        table[at[first], 1] |= 1
        records, at = np.delete(records, first, 0), np.delete(at, first)
    return added, True


def delete_records(table: Ids, places: int, ids: Ids) -> int:
    """Forget records; returns how many there were."""
    gone = 0
    for each in ids:
        found = np.empty(1, np.int64)
        if find_records(table, places, np.array([each]), found):
            at = int(found[0])
            end = at + int((table[at:, 1] & 1 == 0).argmax())
            behind = table[at + 1 : end].copy()
            table[at:end, 1] = 0
            put_records(table, places, behind)
            gone += 1
    return gone


def move_records(table: Ids, begin: int, end: int, places: int, held: Ids) -> int:
    """Let the records of some places go to their new homes in a table that has become longer.

    All behind them have gone before.

    Args:
        table: the records.
        begin: the first of the places.
        end: the one behind the last of them.
        places: the range of homes that the table has now.
        held: room for so many records.

    Returns:
        How many are still to be put in, which are at the beginning of ``held``.
    """
    taken = table[begin:end][(table[begin:end, 1] & 1) == 1]
    table[begin:end, 1] = 0
    far = record_homes(mixed(taken[:, 0]), places) >= begin
    _, complete = put_records(table, places, taken[far])
    late = taken[~far]
    if not complete:
        at = np.empty(len(taken), np.int64)
        find_records(table, places, taken[:, 0], at)
        late = taken[at < 0]
    held[: len(late)] = late
    return len(late)

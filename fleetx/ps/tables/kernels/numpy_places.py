"""Places of records by the hashes of their ids, in numpy.

The index is an array of lines of 64 bytes, which memory gives at once. A line has room for twelve
places, and a byte of the hash of each, its tag, by which most others are told from it; the record
itself, which begins with its id, decides. Ids have a line that grows with their hash; if that one
is full, the next one that is not, and each line counts who went past it: a search ends where
nobody did.
"""

import ctypes

import numpy as np

from fleetx.ps.tables.hashing import mixed
from fleetx.ps.wire.arrays import Array, Ids, Words

WIDE = 16
"""Numbers of four bytes in a line: places, tags, and how many went past it."""
HELD = 12
"""Places in a line."""
TAGS = 4 * HELD
"""The byte of a line at which tags begin; one of 0 is free."""
OVER = 15
"""Which number of a line counts those that went past it."""
SLACK = 64
"""So many lines behind its own an id is at most, and there are so many behind the last one."""
FREE = (1 << 32) - 1
"""What is no place."""


def lines_of(hashes: Words, homes: int) -> Ids:
    """The line of each hash."""
    return (((hashes >> np.uint64(32)) * np.uint64(homes)) >> np.uint64(32)).astype(np.int64)


def _parts(lines: Array) -> tuple[Array, Array, Array]:
    """The places, tags and counts of all lines, as views."""
    whole = lines.reshape(-1, WIDE)
    tags = whole.view(np.uint8)[:, TAGS : TAGS + HELD]
    return whole[:, :HELD], tags, whole[:, OVER]


def _tags_of(hashes: Words) -> Array:
    tags: Array = np.maximum(hashes & np.uint64(255), np.uint64(1)).astype(np.uint8)
    return tags


def words_at(address: int, count: int) -> Ids:
    """So many words at an address; whoever asks knows that they are there."""
    there = memoryview((ctypes.c_int64 * count).from_address(address))
    return np.frombuffer(there.cast("B"), np.int64)


def find_places(
    lines: Array,
    homes: int,
    ids: Ids,
    addresses: Ids,
    shift: int,
    wide: int,
    places: Ids,
    out: Ids,
    copied: bool,
) -> int:
    """Fill in the place of each id, or -1; returns how many have one.

    Args:
        lines: the index.
        homes: the lines in which searches begin.
        ids: what to look for.
        addresses: where the records of each segment begin.
        shift: records of a segment, as a power of two.
        wide: words in a record, of which the first one is its id.
        places: where places are written to.
        out: where the records that were found are written to, in the order of ids.
        copied: whether they are.
    """
    held, tags, over = _parts(lines)
    hashes = mixed(ids)
    at, mine = lines_of(hashes, homes), _tags_of(hashes)
    places[:] = -1
    open_ = np.arange(len(ids))
    while len(open_):
        which, k = np.nonzero(tags[at[open_]] == mine[open_, None])
        candidates = held[at[open_[which]], k].astype(np.int64)
        known = np.empty(len(candidates) * wide, np.int64)
        copy_records(candidates, addresses, shift, wide, known)
        fits = known[::wide] == ids[open_[which]]
        places[open_[which[fits]]] = candidates[fits]
        open_ = open_[(places[open_] < 0) & (over[at[open_]] > 0)]
        at[open_] += 1
    found = places[places >= 0]
    if copied:
        copy_records(found, addresses, shift, wide, out)
    return len(found)


def copy_records(places: Ids, addresses: Ids, shift: int, wide: int, out: Ids) -> None:
    """Copy the records at places."""
    size, rows = 1 << shift, out[: len(places) * wide].reshape(-1, wide)
    numbers = places >> shift
    for number in np.unique(numbers):
        mine = numbers == number
        segment = words_at(int(addresses[number]), size * wide).reshape(size, wide)
        rows[mine] = segment[places[mine] & (size - 1)]


def keep_places(lines: Array, homes: int, ids: Ids, first: int) -> int:
    """Add ids that are not in the index, with places one after the other from the first one on.

    Returns how many were added before the last line was full.
    """
    held, tags, over = _parts(lines)
    hashes = mixed(ids)
    marks = _tags_of(hashes)
    for i, line in enumerate(lines_of(hashes, homes).tolist()):
        at = line
        while tags[at].all():
            at += 1
            if at - line == SLACK:
                return i
        k = int(tags[at].argmin())
        held[at, k], tags[at, k] = first + i, marks[i]
        over[line:at] += 1
    return len(ids)


def keep_marked(lines: Array, homes: int, ids: Ids, first: int, marks: Array) -> bool:
    """The same for those of the ids whose place is marked; whether all were added."""
    bits = np.unpackbits(marks[first // 8 :][: -(-len(ids) // 8)], bitorder="little")
    mine = np.flatnonzero(bits[: len(ids)])
    return all(keep_places(lines, homes, ids[i : i + 1], first + int(i)) for i in mine)


def mark_places(lines: Array, marks: Array) -> None:
    """Set the bit of each place of the index."""
    held, _, _ = _parts(lines)
    places = held[held != FREE]
    np.bitwise_or.at(marks, places >> 3, (1 << (places & 7)).astype(np.uint8))


def forget_places(lines: Array, homes: int, ids: Ids, places: Ids, live: Ids, shift: int) -> None:
    """Forget ids, all in the index with these places; each segment counts those that are left."""
    held, tags, over = _parts(lines)
    for line, place in zip(lines_of(mixed(ids), homes).tolist(), places.tolist(), strict=True):
        at = line
        while not (held[at] == place).any():
            at += 1
        k = int((held[at] == place).argmax())
        held[at, k], tags[at, k] = FREE, 0
        over[line:at] -= 1
        live[place >> shift] -= 1


def move_records(
    lines: Array,
    homes: int,
    source: Ids,
    begin: int,
    first: int,
    target: Ids,
    filled: int,
    size: int,
    wide: int,
    first_there: int,
) -> tuple[int, int]:
    """Move what is alive of a segment to another one, as far as there is room.

    A segment is the ids of its records, and then the records.

    Args:
        lines: the index, which gets the new places.
        homes: the lines in which searches begin.
        source: the segment.
        begin: which of its records is the first one to look at.
        first: the place of its first record.
        target: the other one.
        filled: the records that are there already.
        size: records in a segment.
        wide: words in a record.
        first_there: the place of the first record of the other one.

    Returns:
        The first record that was not looked at, and how many the other one has now.
    """
    held, _, over = _parts(lines)
    homes_of = lines_of(mixed(source[:size]), homes).tolist()
    for i in range(begin, size):
        at = homes_of[i]
        while not (here := held[at] == first + i).any() and over[at]:
            at += 1
        if not here.any():
            continue
        if filled == size:
            return i, size
        held[at, int(here.argmax())] = first_there + filled
        target[filled] = source[i]
        s, t = size + i * wide, size + filled * wide
        target[t : t + wide] = source[s : s + wide]
        filled += 1
    return size, filled

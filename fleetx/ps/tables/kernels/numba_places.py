"""Places of records by the hashes of their ids, compiled; ``numpy_places`` says what each does."""

from typing import Any

import numpy as np

from fleetx.ps.tables.kernels.numba_base import (
    AHEAD,
    ask_for,
    compiled,
    inlined,
    mix,
    prefetch,
    word_at,
)
from fleetx.ps.tables.kernels.numpy_places import FREE, HELD, OVER, SLACK, TAGS, WIDE
from fleetx.ps.wire.arrays import Array, Ids

# Places are unsigned where they are added up, as in ``numba_index``.


@inlined
def _line(value: Any, homes: Any) -> Any:
    return ((mix(value) >> np.uint64(32)) * np.uint64(homes)) >> np.uint64(32)


@inlined
def _tag(value: Any) -> Any:
    return np.uint8(max(mix(value) & np.uint64(255), np.uint64(1)))


@compiled
def _bearing(tags: Any, line: Any, tag: Any) -> Any:
    """The first place of a line with a tag, or ``HELD``; without branches, as ``_sought`` is."""
    at, found = np.uint64(4 * WIDE) * line + np.uint64(TAGS), np.uint64(HELD)
    for k in range(HELD):
        j = np.uint64(HELD - 1 - k)
        found = j if tags[at + j] == tag else found
    return found


@inlined
def _address(place: Any, addresses: Any, shift: Any, wide: Any) -> Any:
    number = np.uint64(place) >> np.uint64(shift)
    at = np.uint64(place) & ((np.uint64(1) << np.uint64(shift)) - np.uint64(1))
    return np.uint64(addresses[number]) + np.uint64(8 * wide) * at


@compiled
def _looked_for(
    lines: Array, tags: Array, homes: int, value: int, addresses: Ids, shift: int, wide: int
) -> int:
    """The place of an id, or -1: all that bear its tag are looked at."""
    line, tag, word = _line(value, homes), _tag(value), np.uint64(WIDE)
    while True:
        at = np.uint64(4) * word * line + np.uint64(TAGS)
        for k in range(HELD):
            if tags[at + np.uint64(k)] == tag:
                place = np.int64(lines[word * line + np.uint64(k)])
                if word_at(_address(place, addresses, shift, wide)) == value:
                    return place
        if lines[word * line + np.uint64(OVER)] == 0:
            return -1
        line += np.uint64(1)


@compiled
def _copy_record(address: Any, wide: Any, out: Any, to: Any) -> None:
    eight, k, end = np.uint64(8), np.uint64(0), np.uint64(wide)
    while k + eight <= end:
        # All loads before all stores, as in ``numba_rows``.
        a, b = word_at(address), word_at(address + np.uint64(8))
        c, d = word_at(address + np.uint64(16)), word_at(address + np.uint64(24))
        e, f = word_at(address + np.uint64(32)), word_at(address + np.uint64(40))
        g, h = word_at(address + np.uint64(48)), word_at(address + np.uint64(56))
        out[to], out[to + np.uint64(1)] = a, b
        out[to + np.uint64(2)], out[to + np.uint64(3)] = c, d
        out[to + np.uint64(4)], out[to + np.uint64(5)] = e, f
        out[to + np.uint64(6)], out[to + np.uint64(7)] = g, h
        address += np.uint64(64)
        to += eight
        k += eight
    while k < end:
        out[to] = word_at(address)
        address += eight
        to += np.uint64(1)
        k += np.uint64(1)


@inlined
def _ask_for_record(address: Any, wide: Any) -> Any:
    for word in range(0, wide + 7, 8):
        ask_for(address + np.uint64(8 * min(word, wide - 1)))


@compiled
def _guess(lines: Any, tags: Any, homes: Any, value: Any) -> Any:
    """The first place with the tag of an id, which is most likely its own, or -1."""
    line, tag, word = _line(value, homes), _tag(value), np.uint64(WIDE)
    k = _bearing(tags, line, tag)
    if k == np.uint64(HELD) and lines[word * line + np.uint64(OVER)] != 0:
        line += np.uint64(1)  # which is near, and has most of those that are not in their own
        k = _bearing(tags, line, tag)
    return np.int64(lines[word * line + k]) if k < np.uint64(HELD) else -1


@compiled
def _place(
    lines: Any, tags: Any, homes: Any, value: Any, guess: Any, addresses: Any, shift: Any, wide: Any
) -> Any:
    """The place of an id, or -1."""
    if guess >= 0:
        if word_at(_address(guess, addresses, shift, wide)) == value:
            return guess
    elif lines[np.uint64(WIDE) * _line(value, homes) + np.uint64(OVER)] == 0:
        return -1
    return _looked_for(lines, tags, homes, value, addresses, shift, wide)


@compiled
def _guess_ahead(
    lines: Any,
    tags: Any,
    homes: Any,
    ids: Any,
    i: Any,
    addresses: Any,
    shift: Any,
    words: Any,
    wide: Any,
) -> Any:
    """Ask for a line two steps ahead of an id, and for the record of the id one step ahead."""
    far, near, guess = i + 2 * AHEAD, i + AHEAD, -1
    if far < ids.shape[0]:
        prefetch(lines, np.int64(np.uint64(WIDE) * _line(ids[far], homes)))
    if 0 <= near < ids.shape[0]:
        guess = _guess(lines, tags, homes, ids[near])
        if guess >= 0:
            _ask_for_record(_address(guess, addresses, shift, wide), words)
    return guess


@compiled
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
    n, count, tags = ids.shape[0], np.uint64(0), lines.view(np.uint8)
    words = wide if copied else 1
    for i in range(-2 * AHEAD, n):
        guess = _guess_ahead(lines, tags, homes, ids, i, addresses, shift, words, wide)
        if 0 <= i + AHEAD < n:
            places[i + AHEAD] = guess  # until its id is looked at: the caller made the array
        if i < 0:
            continue
        place = _place(lines, tags, homes, ids[i], places[i], addresses, shift, wide)
        places[i] = place
        if place >= 0:
            if copied:
                address = _address(place, addresses, shift, wide)
                _copy_record(address, wide, out, count * np.uint64(wide))
            count += np.uint64(1)
    return np.int64(count)


@compiled
def copy_records(places: Ids, addresses: Ids, shift: int, wide: int, out: Ids) -> None:
    n = places.shape[0]
    for i in range(n):
        if i + AHEAD < n:
            address = _address(places[i + AHEAD], addresses, shift, wide)
            _ask_for_record(address, wide)
        address = _address(places[i], addresses, shift, wide)
        _copy_record(address, wide, out, np.uint64(i * wide))


@compiled
def _keep(lines: Any, tags: Any, homes: Any, value: Any, place: Any) -> Any:
    """Whether there was a free place in the line of an id or not far behind it."""
    line, word = _line(value, homes), np.uint64(WIDE)
    begin = line
    k = _bearing(tags, line, np.uint8(0))
    while k == np.uint64(HELD):
        line += np.uint64(1)
        if line - begin == np.uint64(SLACK):
            return False
        k = _bearing(tags, line, np.uint8(0))
    lines[word * line + k] = np.uint32(place)
    tags[np.uint64(4) * word * line + np.uint64(TAGS) + k] = _tag(value)
    while begin < line:
        lines[word * begin + np.uint64(OVER)] += np.uint32(1)
        begin += np.uint64(1)
    return True


@compiled
def keep_places(lines: Array, homes: int, ids: Ids, first: int) -> int:
    n, tags = ids.shape[0], lines.view(np.uint8)
    for i in range(n):
        if i + AHEAD < n:
            prefetch(lines, np.int64(np.uint64(WIDE) * _line(ids[i + AHEAD], homes)))
        if not _keep(lines, tags, homes, ids[i], first + i):
            return i
    return n


@compiled
def keep_marked(lines: Array, homes: int, ids: Ids, first: int, marks: Array) -> bool:
    n, tags = ids.shape[0], lines.view(np.uint8)
    for i in range(n):
        if i + AHEAD < n:
            prefetch(lines, np.int64(np.uint64(WIDE) * _line(ids[i + AHEAD], homes)))
        place = np.uint64(first + i)
        if (marks[place >> np.uint64(3)] >> (place & np.uint64(7))) & 1 and not _keep(
            lines, tags, homes, ids[i], first + i
        ):
            return False
    return True


@compiled
def mark_places(lines: Array, marks: Array) -> None:
    for line in range(np.uint64(lines.shape[0] // WIDE)):
        for k in range(np.uint64(HELD)):
            place = lines[np.uint64(WIDE) * line + k]
            if place != np.uint32(FREE):
                marks[place >> np.uint32(3)] |= np.uint8(1) << (place & np.uint32(7))


@compiled
def _where(lines: Any, line: Any, place: Any) -> Any:
    """Which one of a line a place is, or ``HELD``."""
    at, found = np.uint64(WIDE) * line, np.uint64(HELD)
    for k in range(HELD):
        j = np.uint64(HELD - 1 - k)
        found = j if lines[at + j] == place else found
    return found


@compiled
def forget_places(lines: Array, homes: int, ids: Ids, places: Ids, live: Ids, shift: int) -> None:
    n, tags, word = ids.shape[0], lines.view(np.uint8), np.uint64(WIDE)
    for i in range(n):
        if i + AHEAD < n:
            prefetch(lines, np.int64(word * _line(ids[i + AHEAD], homes)))
        line, place = _line(ids[i], homes), np.uint32(places[i])
        k = _where(lines, line, place)
        while k == np.uint64(HELD):
            lines[word * line + np.uint64(OVER)] -= np.uint32(1)
            line += np.uint64(1)
            k = _where(lines, line, place)
        lines[word * line + k] = np.uint32(FREE)
        tags[np.uint64(4) * word * line + np.uint64(TAGS) + k] = np.uint8(0)
        live[np.uint64(place) >> np.uint64(shift)] -= 1


@compiled
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
    to, word = np.uint64(filled), np.uint64(WIDE)
    for i in range(begin, size):
        if i + AHEAD < size:
            prefetch(lines, np.int64(word * _line(source[i + AHEAD], homes)))
        value, place = source[i], np.uint32(first + i)
        line = _line(value, homes)
        k = _where(lines, line, place)
        while k == np.uint64(HELD) and lines[word * line + np.uint64(OVER)] != 0:
            line += np.uint64(1)
            k = _where(lines, line, place)
        if k == np.uint64(HELD):
            continue
        if to == np.uint64(size):
            return i, size
        lines[word * line + k] = np.uint32(np.uint64(first_there) + to)
        target[to] = value
        s, t = np.uint64(size + i * wide), np.uint64(size) + to * np.uint64(wide)
        for j in range(np.uint64(wide)):
            target[t + j] = source[s + j]
        to += np.uint64(1)
    return size, np.int64(to)

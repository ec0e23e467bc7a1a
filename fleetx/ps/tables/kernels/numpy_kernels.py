"""The inner loops of tables in numpy, for machines without numba.

A table's index is a flat array of pairs (id, word); a negative word marks a free place. Places are
probed one after the other from an id's home, and the last place is always free, so no probe leaves
the array. Homes grow with the hash: a range of hashes is a range of places. Every home is the first
place of a cache line, in which most probes end.
"""

import numpy as np
from numpy.typing import NDArray

from fleetx.ps.tables.hashing import mixed, servers_of, uniform
from fleetx.ps.tables.kernels.numpy_dense import (  # noqa: F401 - names of this engine, too
    all_finite,
    dense_adagrad,
    dense_adam,
    dense_rmsprop,
    dense_sgd,
)
from fleetx.ps.tables.kernels.numpy_places import (  # noqa: F401 - these, too
    copy_records,
    find_places,
    forget_places,
    keep_marked,
    keep_places,
    mark_places,
    move_records,
)
from fleetx.ps.wire.arrays import Array, Floats, Ids, Words

SLOT_BITS = 34
SLOT = (1 << SLOT_BITS) - 1
"""The bits of a word that say in which row the id lives; the others are stamps."""
PLACES = 4
"""Pairs in a cache line."""
BEARS_DENSE = False
"""Whether ids are still found fast in an index that is nearly full."""


def homes(hashes: Words, places: int) -> Ids:
    """The place where the search for each hash begins."""
    high, lines = hashes >> np.uint64(32), np.uint64(places // PLACES)
    return ((high * lines) >> np.uint64(32)).astype(np.int64) * PLACES


def find(pairs: Ids, places: int, ids: Ids, slots: Ids, keep: int, stamp: int) -> int:
    """Fill in the row of each id, or -1; returns how many are missing.

    Args:
        pairs: the index.
        places: the range of homes.
        ids: what to look for.
        slots: where the rows are written to.
        keep: the bits of a found word that stay.
        stamp: the bits that are set in it.
    """
    keys, words = pairs[0::2], pairs[1::2]
    at = homes(mixed(ids), places)
    slots[:] = -1
    open_ = np.arange(len(ids))
    while len(open_):
        where = at[open_]
        word = words[where]
        hit = (word >= 0) & (keys[where] == ids[open_])
        found = open_[hit]
        slots[found] = word[hit] & SLOT
        words[where[hit]] = (word[hit] & keep) | stamp
        open_ = open_[~hit & (word >= 0)]
        at[open_] += 1
    return int((slots < 0).sum())


def insert(pairs: Ids, places: int, ids: Ids, words: Ids) -> int:
    """Add ids that are not in the index; returns how many fitted before its end was reached."""
    keys, held = pairs[0::2], pairs[1::2]
    at = homes(mixed(ids), places)
    open_ = np.arange(len(ids))
    while len(open_):
        if at[open_].max() >= len(keys) - 1:
            return len(ids) - len(open_)
        settled = held[at[open_]] < 0
        free = open_[settled]
        # Of several ids that want one place the last write wins; the others go on.
        held[at[free]] = words[free]
        won = held[at[free]] == words[free]
        keys[at[free[won]]] = ids[free[won]]
        settled[settled] = won
        open_ = open_[~settled]
        at[open_] += 1
    return len(ids)


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
    """Fill in the row of each id, and add those that have none, as far as there is room.

    Args:
        pairs: the index.
        places: the range of homes.
        ids: what to look for.
        slots: where the rows are written to.
        keep: the bits of a found word that stay.
        stamp: the bits that are set in it.
        word: the stamps of new ones.
        free: rows to give out, the last one first.
        used: the first of those to give out then.
        room: how many may be added.
        new: where the places of new ones in ``ids`` are written to.

    Returns:
        How many ids were gone through, and how many were added.
    """
    find(pairs, places, ids, slots, keep, stamp)
    unknown = np.flatnonzero(slots < 0)
    _, first, inverse = np.unique(ids[unknown], return_index=True, return_inverse=True)
    order = np.argsort(first)  # as they came
    done = len(ids) if len(order) <= room else int(unknown[first[order[room]]])
    order = order[:room]
    at = unknown[first[order]]
    given = np.concatenate([free[::-1][: len(at)], used + np.arange(max(len(at) - len(free), 0))])
    if insert(pairs, places, ids[at], given | word) < len(at):  # the end was reached
        added = np.flatnonzero(np.isin(pairs[1::2], given | word))
        pairs[0::2][added], pairs[1::2][added] = 0, -1
        return 0, 0
    number = np.empty(len(first), np.int64)
    number[order] = given
    chosen = unknown < done
    slots[unknown[chosen]] = number[inverse.reshape(-1)[chosen]]
    new[: len(at)] = at
    return done, len(at)


def remove(pairs: Ids, places: int, ids: Ids) -> None:
    """Forget ids that are in the index: who was behind one of them comes nearer to its home."""
    keys, words = pairs[0::2], pairs[1::2]
    for hole, id_ in zip(homes(mixed(ids), places).tolist(), ids, strict=True):
        while words[hole] < 0 or keys[hole] != id_:
            hole += 1  # noqa: PLW2901
        at = hole + 1
        while words[at] >= 0:
            if homes(mixed(keys[at : at + 1]), places)[0] <= hole:
                keys[hole], words[hole] = keys[at], words[at]
                hole = at  # noqa: PLW2901
            at += 1
        keys[hole], words[hole] = 0, -1


def copy_out(rows: Array, begin: int, slots: Ids, out: Array, at: int, width: int) -> None:
    """Copy bytes of rows, from one on, to those of others, from another on."""
    out[:, at : at + width] = rows[slots, begin : begin + width]


def copy_in(rows: Array, begin: int, slots: Ids, given: Array, at: int, width: int) -> None:
    """Copy such bytes back."""
    rows[slots, begin : begin + width] = given[:, at : at + width]


def fill_uniform(
    rows: Floats, slots: Ids, ids: Ids, columns: int, seed: int, low: float, high: float
) -> None:
    """Numbers between two bounds, from the hashes of ids, at the beginnings of rows."""
    spread = low + (high - low) * uniform(ids, columns, seed)
    rows[slots, :columns] = spread.astype(np.float32)


def expand(pairs: Ids, before: int, old: int, places: int) -> tuple[Ids, Ids]:
    """Let pairs go to their new homes in an index that has become longer.

    Args:
        pairs: the index.
        before: how long it was.
        old: the range of homes that it had.
        places: the range of homes that it has now.

    Returns:
        The ids and words that are still to be inserted.
    """
    keys, words = pairs[0::2][:before], pairs[1::2][:before]
    live = np.flatnonzero(words >= 0)
    left = keys[live], words[live]
    keys[:], words[:] = 0, -1
    return left


def gather(rows: Floats, slots: Ids, out: Floats) -> None:
    """Copy the beginnings of rows to ``out``; for -1 there is some row, which ``clear`` wipes."""
    if rows.shape[1] == out.shape[1]:
        np.take(rows, slots, axis=0, out=out, mode="clip")  # other modes buffer the output
    else:
        out[:] = rows[slots, : out.shape[1]]


def clear(slots: Ids, out: Floats) -> None:
    """Set what belongs to -1 to zero."""
    out[slots < 0] = 0


def find_differing(marks: Array, slots: Ids, value: int, leave: bool, out: Ids) -> int:
    """Places of slots, all different, that bear another mark; they get this one, unless left."""
    found = np.flatnonzero(marks[slots] != value)
    out[: len(found)] = found
    if not leave:
        marks[slots[found]] = value
    return len(found)


def differences(rows: Floats, before: Floats, slots: Ids, share: float, out: Floats) -> None:
    """How far rows have come, times a factor."""
    out[...] = (rows[slots, : out.shape[1]] - before[slots]) * np.float32(share)


def renew(rows: Floats, before: Floats, slots: Ids, weights: Floats) -> None:
    """Move different rows by how far others have come, which is remembered."""
    rows[slots, : weights.shape[1]] += weights - before[slots]
    before[slots] = weights


def add(rows: Floats, slots: Ids, delta: Floats) -> None:
    """``w += delta`` for rows that are all different."""
    rows[:, : delta.shape[1]][slots] += delta


def sgd(rows: Floats, slots: Ids, gradients: Floats, rate: float) -> None:
    """``w -= rate * g`` for rows that are all different; weights are at their beginning."""
    rows[:, : gradients.shape[1]][slots] -= np.float32(rate) * gradients


def adagrad(
    rows: Floats,
    state: Floats,
    begin: int,
    slots: Ids,
    gradients: Floats,
    rate: float,
    eps: float,
) -> None:
    """``s += g*g; w -= rate * g / (sqrt(s) + eps)``, in pieces that stay in the cache.

    Args:
        rows: weights are at their beginning.
        state: the same rows, or others.
        begin: where the state begins in them.
        slots: which rows, all different.
        gradients: one for each of them.
        rate: how far they move.
        eps: what keeps them from moving too far.
    """
    d = gradients.shape[1]
    weights, state = rows[:, :d], state[:, begin : begin + d]
    for first in range(0, len(slots), 1024):
        piece = slots[first : first + 1024]
        g = gradients[first : first + 1024]
        total = state[piece] + g * g
        state[piece] = total
        weights[piece] -= np.float32(rate) * g / (np.sqrt(total) + np.float32(eps))


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
    corrections: NDArray[np.float64],
) -> None:
    """Adam with a step count for each row, kept behind its two moments.

    The corrections of the first steps may be looked up: ``1 / (1 - first**step)`` and
    ``1 / sqrt(1 - second**step)``.
    """
    d = gradients.shape[1]
    weights, state = rows[:, :d], state[:, begin : begin + 2 * d + 1]
    b1, b2 = np.float32(first), np.float32(second)
    c1, c2 = np.float32(1 - first), np.float32(1 - second)  # not from the rounded b1 and b2
    for start in range(0, len(slots), 1024):
        piece = slots[start : start + 1024]
        g = gradients[start : start + 1024]
        s = state[piece]
        step = s[:, 2 * d] + 1
        s[:, :d] = b1 * s[:, :d] + c1 * g
        s[:, d : 2 * d] = b2 * s[:, d : 2 * d] + c2 * g * g
        s[:, 2 * d] = step
        state[piece] = s
        short = (rate / (1 - first ** step.astype(np.float64))).astype(np.float32)
        root = (1 / np.sqrt(1 - second ** step.astype(np.float64))).astype(np.float32)
        spread = np.sqrt(s[:, d : 2 * d]) * root[:, None] + np.float32(eps)
        weights[piece] -= short[:, None] * s[:, :d] / spread


def dedupe(ids: Ids, servers: int) -> tuple[Ids, Ids, Ids]:
    """Each id once, those of one server together; where each server begins; where each id went."""
    unique, inverse = np.unique(ids, return_inverse=True)
    route = servers_of(unique, servers)
    order = np.argsort(route, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    begins = np.zeros(servers + 1, np.int64)
    begins[1:] = np.cumsum(np.bincount(route, minlength=servers))
    return unique[order], begins, place[inverse.reshape(-1)]


def sum_rows(rows: Floats, targets: Ids, out: Floats) -> None:
    """``out[targets[i]] += rows[i]``."""
    np.add.at(out, targets, rows)


def pick(rows: Floats, places: Ids, out: Floats) -> None:
    """``out = rows[places]``, for few rows and many places."""
    np.take(rows, places, 0, out)


def pool_rows(rows: Floats, sources: Ids, targets: Ids, out: Floats) -> None:
    """``out[targets[i]] += rows[sources[i]]``."""
    np.add.at(out, targets, rows[sources])

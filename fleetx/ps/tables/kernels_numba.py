"""The inner loops of tables compiled by numba; ``kernels_numpy`` says what each of them does."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fleetx.ps.tables.hashing import FIRST, SECOND
from fleetx.ps.tables.kernels_numpy import PLACES, SLOT
from fleetx.ps.wire.arrays import Array, Floats, Ids

AHEAD = 32
"""Rows between the one that is worked on and the one that is asked for from memory."""
NEAR = 8
"""The same for updates, which take longer for a row and hold twice as many lines."""
LINE = 16
"""Floats in a cache line."""

compiled = njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
"""References to arrays are not counted: that would be several atomic instructions for each row."""
allocating = njit(nogil=True, cache=True, error_model="numpy")
inlined = njit(inline="always", error_model="numpy")


@intrinsic
def _prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Ask memory for ``array[index]`` without waiting for it."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, args[0])
        place = cgutils.get_item_pointer(context, builder, kind, view, [args[1]], wraparound=False)
        place = builder.bitcast(place, ir.IntType(8).as_pointer())
        # In a register of its own: some ARM processors ignore a prefetch whose address is a sum.
        one = ir.FunctionType(place.type, [place.type])
        place = builder.asm(one, "", "=r,0", [place], False)
        word = ir.IntType(32)
        call = ir.FunctionType(ir.VoidType(), [place.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, call, "llvm.prefetch.p0")
        # For reading, to be kept in all caches, as data.
        builder.call(function, [place, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), emit


@inlined
def _mix(value: Any) -> Any:
    h = np.uint64(value)
    h ^= h >> np.uint64(33)
    h *= np.uint64(FIRST)
    h ^= h >> np.uint64(33)
    h *= np.uint64(SECOND)
    h ^= h >> np.uint64(33)
    return h


@inlined
def _home(value: Any, places: Any) -> Any:
    lines = np.uint64(places // PLACES)
    return np.int64(((_mix(value) >> np.uint64(32)) * lines) >> np.uint64(32)) * PLACES


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
    # Until its id is looked for, the place of a slot holds the line in which that begins.
    for i in range(-AHEAD, n):
        if i + AHEAD < n:
            line = 2 * _home(ids[i + AHEAD], places)
            slots[i + AHEAD] = line
            _prefetch(pairs, line)
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
            _prefetch(pairs, 2 * _home(ids[i + AHEAD], places))
        at = _home(ids[i], places)
        while at < last and pairs[2 * at + 1] >= 0:
            at += 1
        if at == last:
            return i
        pairs[2 * at] = ids[i]
        pairs[2 * at + 1] = words[i]
    return n


@compiled
def rebuild(old: Ids, pairs: Ids, places: int) -> bool:
    last = pairs.shape[0] // 2 - 1
    for i in range(old.shape[0] // 2):
        word = old[2 * i + 1]
        if word >= 0:
            at = _home(old[2 * i], places)
            while at < last and pairs[2 * at + 1] >= 0:
                at += 1
            if at == last:
                return False
            pairs[2 * at] = old[2 * i]
            pairs[2 * at + 1] = word
    return True


@compiled
def _gather(rows: Floats, slots: Ids, out: Floats) -> None:
    n, d = out.shape
    flat, wide = rows.reshape(-1), rows.shape[1]
    for i in range(n):
        if i + AHEAD < n:
            for k in range(0, d, LINE):
                _prefetch(flat, slots[i + AHEAD] * wide + k)
        # Views of single rows: the compiler sees that indexes are in order and uses vectors.
        row, to = rows[slots[i]], out[i]
        for j in range(d):
            to[j] = row[j]


@inlined
def _copy_half_line(source: Any, at: Any, target: Any, to: Any) -> None:
    # All loads before all stores: they need not wait to learn that the two do not overlap.
    a, b = source[at], source[at + np.uint64(1)]
    c, d = source[at + np.uint64(2)], source[at + np.uint64(3)]
    target[to], target[to + np.uint64(1)] = a, b
    target[to + np.uint64(2)], target[to + np.uint64(3)] = c, d


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
    n, words, wide = out.shape[0], out.shape[1] // 2, rows.shape[1] // 2
    source, target = rows.reshape(-1).view(np.int64), out.reshape(-1).view(np.int64)
    for i in range(n):
        if i + AHEAD < n:
            for k in range(0, words, LINE // 2):
                _prefetch(source, slots[i + AHEAD] * wide + k)
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
    # -1 reads some row, which costs less than asking.
    if out.shape[1] % LINE == 0 and rows.shape[1] % 2 == 0:
        _gather_lines(rows, slots, out)
    else:
        _gather(rows, slots, out)


@compiled
def add(rows: Floats, slots: Ids, delta: Floats) -> None:
    sgd(rows, slots, delta, -1.0)


@compiled
def unlike(marks: Array, slots: Ids, value: int, leave: bool, out: Ids) -> int:
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
# places have no sign: it would be looked at for each number, and no vectors would be used.


@compiled
def sgd(rows: Floats, slots: Ids, gradients: Floats, rate: float) -> None:
    n, d = gradients.shape
    flat, given, wide, r = rows.reshape(-1), gradients.reshape(-1), rows.shape[1], np.float32(rate)
    for i in range(n):
        if i + AHEAD < n:
            for k in range(0, d, LINE):
                _prefetch(flat, slots[i + AHEAD] * wide + k)
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
                _prefetch(flat, slots[i + NEAR] * wide + k)
                _prefetch(totals, slots[i + NEAR] * far + begin + k)
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
) -> None:
    n, d = gradients.shape
    flat, moments = rows.reshape(-1), state.reshape(-1)
    wide, far = rows.shape[1], state.shape[1]
    b1, b2, e = np.float32(first), np.float32(second), np.float32(eps)
    c1, c2 = np.float32(1 - first), np.float32(1 - second)
    for i in range(n):
        if i + AHEAD < n:
            for k in range(0, d, LINE):
                _prefetch(flat, slots[i + AHEAD] * wide + k)
            for k in range(0, 2 * d + 1, LINE):
                _prefetch(moments, slots[i + AHEAD] * far + begin + k)
        w, g, s = rows[slots[i]], gradients[i], state[slots[i]][begin:]
        means, squares = s[:d], s[d : 2 * d]
        step = s[2 * d] + np.float32(1)
        s[2 * d] = step
        short = np.float32(rate / (1 - first ** np.float64(step)))
        root = np.float32(np.sqrt(1 - second ** np.float64(step)))
        for j in range(d):
            mean = b1 * means[j] + c1 * g[j]
            square = b2 * squares[j] + c2 * g[j] * g[j]
            means[j] = mean
            squares[j] = square
            w[j] -= short * mean / (np.sqrt(square) / root + e)


@allocating
def _unique(ids: Ids) -> tuple[Ids, Ids]:
    """The ids in the order of their first places, and where each of them is among these."""
    n, places, count = ids.shape[0], 2, 0
    while places < 2 * n:
        places *= 2
    # Short numbers: the table stays in a near cache, and all of the time is spent in it.
    seen, inverse = np.full(places, -1, np.int32), np.empty(n, np.int64)
    unique, last = np.empty(n, np.int64), np.uint64(places - 1)
    for i in range(n):
        value = ids[i]
        at = (_mix(value) >> np.uint64(32)) & last
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
        low = _mix(unique[i]) & np.uint64(0xFFFFFFFF)
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

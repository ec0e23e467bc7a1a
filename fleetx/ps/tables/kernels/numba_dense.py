"""Dense parameters, compiled: one pass over flat arrays; ``numpy_dense`` says what each does."""

from typing import Any

import numpy as np

from fleetx.ps.tables.kernels.numba_base import compiled, inlined
from fleetx.ps.wire.arrays import Array, Floats


@inlined
def _gradient(given: Any, value: Any, sign: Any, decay: Any) -> Any:
    # Not times zero where nothing decays: a weight that is infinite would have no gradient then.
    return sign * given + decay * value if decay != 0 else sign * given


@compiled
def dense_sgd(
    values: Floats,
    gradients: Floats,
    buffer: Floats,
    rate: float,
    momentum: float,
    fresh: float,
    sign: float,
    decay: float,
    nesterov: bool,
) -> None:
    r, m, f = np.float32(rate), np.float32(momentum), np.float32(fresh)
    s, d = np.float32(sign), np.float32(decay)
    for i in range(values.shape[0]):
        g = _gradient(gradients[i], values[i], s, d)
        if m != 0:
            buffer[i] = m * buffer[i] + f * g
            g = g + m * buffer[i] if nesterov else buffer[i]
        values[i] -= r * g


@compiled
def dense_adagrad(
    values: Floats,
    gradients: Floats,
    total: Floats,
    rate: float,
    eps: float,
    sign: float,
    decay: float,
) -> None:
    r, e = np.float32(rate), np.float32(eps)
    s, d = np.float32(sign), np.float32(decay)
    for i in range(values.shape[0]):
        g = _gradient(gradients[i], values[i], s, d)
        sum_ = total[i] + g * g
        total[i] = sum_
        values[i] -= r * g / (np.sqrt(sum_) + e)


@compiled
def dense_adam(
    values: Floats,
    gradients: Floats,
    mean: Floats,
    square: Floats,
    largest: Floats,
    rate: float,
    root: float,
    first: float,
    second: float,
    eps: float,
    sign: float,
    decay: float,
    kept: float,
    amsgrad: bool,
) -> None:
    r, b, e, k = np.float32(rate), np.float32(root), np.float32(eps), np.float32(kept)
    b2, c1, c2 = np.float32(second), np.float32(1 - first), np.float32(1 - second)
    s, d = np.float32(sign), np.float32(decay)
    for i in range(values.shape[0]):
        w = values[i] * k if k != 1 else values[i]
        g = _gradient(gradients[i], w, s, d)
        m = mean[i] + c1 * (g - mean[i])
        v = b2 * square[i] + c2 * g * g
        mean[i], square[i] = m, v
        if amsgrad:
            v = max(largest[i], v)
            largest[i] = v
        values[i] = w - r * m / (np.sqrt(v) / b + e)


@compiled
def dense_rmsprop(
    values: Floats,
    gradients: Floats,
    square: Floats,
    mean: Floats,
    buffer: Floats,
    rate: float,
    alpha: float,
    eps: float,
    momentum: float,
    sign: float,
    decay: float,
    centered: bool,
) -> None:
    r, a, c, e = np.float32(rate), np.float32(alpha), np.float32(1 - alpha), np.float32(eps)
    s, d, m = np.float32(sign), np.float32(decay), np.float32(momentum)
    for i in range(values.shape[0]):
        g = _gradient(gradients[i], values[i], s, d)
        v = a * square[i] + c * g * g
        square[i] = v
        if centered:
            mean[i] += c * (g - mean[i])
            v -= mean[i] * mean[i]
        move = g / (np.sqrt(v) + e)
        if m != 0:
            move = m * buffer[i] + move
            buffer[i] = move
        values[i] -= r * move


@compiled
def all_finite(words: Array) -> Any:
    # The bits of the exponent are all set in numbers that are not finite; whole numbers are
    # compared several at once, and sums of floats would have to wait for each other.
    largest = np.int32(0)
    for i in range(words.shape[0]):
        largest = max(largest, words[i] & np.int32(0x7FFFFFFF))
    return largest < np.int32(0x7F800000)

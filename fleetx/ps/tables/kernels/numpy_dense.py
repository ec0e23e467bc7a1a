"""How dense parameters move, in numpy: torch's optimizers, which move each number by itself.

All of them take a gradient times ``sign``, and add ``decay`` times the value to it.
"""

from typing import Any

import numpy as np

from fleetx.ps.wire.arrays import Array, Floats


def _gradient(values: Floats, gradients: Floats, sign: float, decay: float) -> Floats:
    signed = gradients * np.float32(sign)
    return signed + np.float32(decay) * values if decay else signed


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
    """``b = momentum * b + fresh * g; w -= rate * b``, or by ``g`` where there is no momentum."""
    g = _gradient(values, gradients, sign, decay)
    if momentum:
        buffer[:] = np.float32(momentum) * buffer + np.float32(fresh) * g
        g = g + np.float32(momentum) * buffer if nesterov else buffer
    values -= np.float32(rate) * g


def dense_adagrad(
    values: Floats,
    gradients: Floats,
    total: Floats,
    rate: float,
    eps: float,
    sign: float,
    decay: float,
) -> None:
    """``s += g*g; w -= rate * g / (sqrt(s) + eps)``."""
    g = _gradient(values, gradients, sign, decay)
    total += g * g
    values -= np.float32(rate) * g / (np.sqrt(total) + np.float32(eps))


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
    """``w = kept * w - rate * m / (sqrt(v) / root + eps)``, with both moments after the update.

    Args:
        values: what is moved.
        gradients: one for each.
        mean: the first moment.
        square: the second one.
        largest: of the second one so far, for ``amsgrad``; else anything.
        rate: the learning rate, corrected for the first updates.
        root: of the correction of the second moment.
        first: what an update leaves of the first moment.
        second: what it leaves of the second one.
        eps: in the denominator.
        sign: of gradients.
        decay: of weights, as a part of the gradient.
        kept: what is left of weights that decay by themselves.
        amsgrad: divide by the largest second moment.
    """
    values *= np.float32(kept)
    g = _gradient(values, gradients, sign, decay)
    mean += np.float32(1 - first) * (g - mean)
    square[:] = np.float32(second) * square + np.float32(1 - second) * g * g
    if amsgrad:
        np.maximum(largest, square, out=largest)
    under = np.sqrt(largest if amsgrad else square) / np.float32(root) + np.float32(eps)
    values -= np.float32(rate) * mean / under


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
    """``v = alpha * v + (1-alpha) * g*g; w -= rate * g / (sqrt(v) + eps)``, or with momentum."""
    g = _gradient(values, gradients, sign, decay)
    square[:] = np.float32(alpha) * square + np.float32(1 - alpha) * g * g
    if centered:
        mean += np.float32(1 - alpha) * (g - mean)
    spread = square - mean * mean if centered else square
    move: Any = g / (np.sqrt(spread) + np.float32(eps))
    if momentum:
        buffer[:] = np.float32(momentum) * buffer + move
        move = buffer
    values -= np.float32(rate) * move


def all_finite(words: Array) -> bool:
    """Whether no number is infinite or none at all; they come as 32-bit whole numbers."""
    return bool(np.isfinite(words.view(np.float32)).all())

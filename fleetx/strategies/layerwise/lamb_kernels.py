"""LAMB as three GPU kernels over all tensors of a group: moments, rates, update."""

# ruff: noqa: PLR0917  (kernels take positions, and branches of constants are not values)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

import math
from typing import Any

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from fleetx.strategies.layerwise.pointers import CHUNK, PointerTable
from fleetx.strategies.layerwise.shared_kernels import learning_rate, norm, size_to_move


def move(
    table: PointerTable, group: dict[str, Any], lr: float | Tensor, skip: Tensor | None = None
) -> None:
    """Move all parameters; ``table`` lists parameters, gradients, both moments and counters.

    Nothing moves where ``skip``, a number on the device, is not zero.
    """
    tensors, chunks = len(table.rates), len(table.owners)
    beta1, beta2 = group["betas"]
    eps, decay = float(group["eps"]), float(group["lamb_weight_decay"])
    sign = -1.0 if group["maximize"] else 1.0
    skipping = (table.rates, False) if skip is None else (skip, True)
    if chunks == 0:
        return
    _moments[(chunks,)](
        table.rows,
        table.owners,
        table.sums,
        tensors,
        chunks,
        sign,
        float(group["weight_decay"]),
        decay,
        float(beta1),
        float(beta2),
        1.0 - beta1,
        1.0 - beta2,
        _log(beta1),
        _log(beta2),
        eps,
        *skipping,
        CHUNK=CHUNK,
    )
    _rates[(tensors,)](
        table.rows,
        table.sums,
        table.rates,
        tensors,
        chunks,
        lr,
        *skipping,
        LR_ON_DEVICE=isinstance(lr, Tensor),
        WIDTH=1024,
    )
    _update[(chunks,)](
        table.rows,
        table.owners,
        table.rates,
        tensors,
        decay,
        _log(beta1),
        _log(beta2),
        eps,
        *skipping,
        CHUNK=CHUNK,
    )


def _log(beta: float) -> float:
    return math.log(beta) if beta > 0 else -math.inf


@triton.jit
def _direction(param, mean, square, decay, time, log1, log2, eps):
    # In double precision: 1 - 0.999 has four digits less than its operands.
    first = (1.0 - tl.exp(time.to(tl.float64) * log1)).to(tl.float32)
    second = tl.sqrt(1.0 - tl.exp(time.to(tl.float64) * log2)).to(tl.float32)
    return (mean / first) / (tl.sqrt(square) / second + eps) + decay * param


@triton.jit
def _moments(
    rows,
    owners,
    sums,
    tensors,
    chunks,
    sign,
    weight_decay,
    decay,
    beta1,
    beta2,
    rest1,
    rest2,
    log1,
    log2,
    eps,
    skip,
    MAY_SKIP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    chunk = tl.program_id(0)
    tensor = tl.load(owners + chunk)
    row = rows + tensor
    params = tl.load(row).to(tl.pointer_type(tl.float32))
    grads = tl.load(row + tensors).to(tl.pointer_type(tl.float32))
    means = tl.load(row + 2 * tensors).to(tl.pointer_type(tl.float32))
    squares = tl.load(row + 3 * tensors).to(tl.pointer_type(tl.float32))
    time = tl.load(tl.load(row + 4 * tensors).to(tl.pointer_type(tl.float32))) + 1.0
    at = (chunk - tl.load(row + 6 * tensors)) * CHUNK + tl.arange(0, CHUNK)
    inside = at < size_to_move(row + 5 * tensors, skip, MAY_SKIP)
    param = tl.load(params + at, mask=inside, other=0.0)
    grad = tl.load(grads + at, mask=inside, other=0.0) * sign + weight_decay * param
    mean = tl.load(means + at, mask=inside, other=0.0) * beta1 + rest1 * grad
    square = tl.load(squares + at, mask=inside, other=0.0) * beta2 + rest2 * grad * grad
    tl.store(means + at, mean, mask=inside)
    tl.store(squares + at, square, mask=inside)
    if tl.load(row + 8 * tensors) == 0:
        step = _direction(param, mean, square, decay, time, log1, log2, eps)
        step = tl.where(inside, step, 0.0)
        tl.store(sums + chunk, tl.sum(param * param))
        tl.store(sums + chunks + chunk, tl.sum(step * step))


@triton.jit
def _rates(
    rows,
    sums,
    rates,
    tensors,
    chunks,
    lr,
    skip,
    MAY_SKIP: tl.constexpr,
    LR_ON_DEVICE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    tensor = tl.program_id(0)
    row = rows + tensor
    time = tl.load(row + 4 * tensors).to(tl.pointer_type(tl.float32))
    if MAY_SKIP:
        tl.store(time, tl.load(time) + tl.where(tl.load(skip) != 0.0, 0.0, 1.0))
    else:
        tl.store(time, tl.load(time) + 1.0)
    base = learning_rate(lr, LR_ON_DEVICE)
    first = tl.load(row + 6 * tensors)
    count = tl.load(row + 7 * tensors)
    if tl.load(row + 8 * tensors) != 0:
        tl.store(rates + tensor, base)
    else:
        weight = norm(sums, first, count, WIDTH)
        step = norm(sums + chunks, first, count, WIDTH)
        known = (weight > 0.0) & (step > 0.0)
        tl.store(rates + tensor, base * tl.where(known, weight / step, 1.0))


@triton.jit
def _update(
    rows,
    owners,
    rates,
    tensors,
    decay,
    log1,
    log2,
    eps,
    skip,
    MAY_SKIP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    chunk = tl.program_id(0)
    tensor = tl.load(owners + chunk)
    row = rows + tensor
    params = tl.load(row).to(tl.pointer_type(tl.float32))
    means = tl.load(row + 2 * tensors).to(tl.pointer_type(tl.float32))
    squares = tl.load(row + 3 * tensors).to(tl.pointer_type(tl.float32))
    time = tl.load(tl.load(row + 4 * tensors).to(tl.pointer_type(tl.float32)))
    at = (chunk - tl.load(row + 6 * tensors)) * CHUNK + tl.arange(0, CHUNK)
    inside = at < size_to_move(row + 5 * tensors, skip, MAY_SKIP)
    param = tl.load(params + at, mask=inside, other=0.0)
    mean = tl.load(means + at, mask=inside, other=0.0)
    square = tl.load(squares + at, mask=inside, other=0.0)
    own = tl.where(tl.load(row + 8 * tensors) != 0, 0.0, decay)
    step = _direction(param, mean, square, own, time, log1, log2, eps)
    tl.store(params + at, param - tl.load(rates + tensor) * step, mask=inside)

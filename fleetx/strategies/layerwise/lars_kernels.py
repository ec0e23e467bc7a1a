"""LARS as three GPU kernels over all tensors of a group: partial norms, rates, update."""

# ruff: noqa: PLR0917  (kernels take positions)
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from typing import Any

import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import Tensor

from fleetx.strategies.layerwise.pointers import CHUNK, PointerTable
from fleetx.strategies.layerwise.shared_kernels import learning_rate, norm, size_to_move


def move(
    table: PointerTable, group: dict[str, Any], lr: float | Tensor, skip: Tensor | None = None
) -> None:
    """Move all parameters; ``table`` lists parameters, gradients and velocities.

    Nothing moves where ``skip``, a number on the device, is not zero.
    """
    tensors, chunks = len(table.rates), len(table.owners)
    decay, weight_decay = float(group["lars_weight_decay"]), float(group["weight_decay"])
    sign = -1.0 if group["maximize"] else 1.0
    if chunks == 0:
        return
    _squares[(chunks,)](
        table.rows, table.owners, table.sums, tensors, chunks, sign, weight_decay, CHUNK=CHUNK
    )
    _rates[(tensors,)](
        table.rows,
        table.sums,
        table.rates,
        tensors,
        chunks,
        lr,
        float(group["lars_coeff"]),
        decay,
        float(group["epsilon"]),
        LR_ON_DEVICE=isinstance(lr, Tensor),
        WIDTH=1024,
    )
    _update[(chunks,)](
        table.rows,
        table.owners,
        table.rates,
        tensors,
        sign,
        weight_decay,
        decay,
        float(group["momentum"]),
        table.rates if skip is None else skip,  # a kernel takes some pointer; it is not read
        MAY_SKIP=skip is not None,
        CHUNK=CHUNK,
    )


# Rows of the table, each ``tensors`` long: parameters, gradients, velocities, sizes, first chunks,
# numbers of chunks, exclusion. Addresses are read as those of float32 without gaps, which is safe
# because ``_path`` sends no other tensors here, and none whose gradient or state lies otherwise.
# Sums of excluded tensors are left as they were; ``_rates`` does not read them.


@triton.jit
def _squares(rows, owners, sums, tensors, chunks, sign, weight_decay, CHUNK: tl.constexpr):
    chunk = tl.program_id(0)
    tensor = tl.load(owners + chunk)
    row = rows + tensor
    if tl.load(row + 6 * tensors) == 0:
        params = tl.load(row).to(tl.pointer_type(tl.float32))
        grads = tl.load(row + tensors).to(tl.pointer_type(tl.float32))
        size = tl.load(row + 3 * tensors)
        at = (chunk - tl.load(row + 4 * tensors)) * CHUNK + tl.arange(0, CHUNK)
        param = tl.load(params + at, mask=at < size, other=0.0)
        grad = tl.load(grads + at, mask=at < size, other=0.0) * sign + weight_decay * param
        tl.store(sums + chunk, tl.sum(param * param))
        tl.store(sums + chunks + chunk, tl.sum(grad * grad))


@triton.jit
def _rates(
    rows,
    sums,
    rates,
    tensors,
    chunks,
    lr,
    coeff,
    decay,
    epsilon,
    LR_ON_DEVICE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    tensor = tl.program_id(0)
    row = rows + tensor
    base = learning_rate(lr, LR_ON_DEVICE)
    first = tl.load(row + 4 * tensors)
    count = tl.load(row + 5 * tensors)
    if tl.load(row + 6 * tensors) != 0:
        tl.store(rates + tensor, base)
    else:
        weight = norm(sums, first, count, WIDTH)
        gradient = norm(sums + chunks, first, count, WIDTH)
        ratio = coeff * weight / (gradient + decay * weight + epsilon)
        known = (weight > 0.0) & (gradient > 0.0)
        tl.store(rates + tensor, base * tl.where(known, ratio, 1.0))


@triton.jit
def _update(
    rows,
    owners,
    rates,
    tensors,
    sign,
    weight_decay,
    decay,
    momentum,
    skip,
    MAY_SKIP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    chunk = tl.program_id(0)
    tensor = tl.load(owners + chunk)
    row = rows + tensor
    params = tl.load(row).to(tl.pointer_type(tl.float32))
    grads = tl.load(row + tensors).to(tl.pointer_type(tl.float32))
    velocities = tl.load(row + 2 * tensors).to(tl.pointer_type(tl.float32))
    size = size_to_move(row + 3 * tensors, skip, MAY_SKIP)
    at = (chunk - tl.load(row + 4 * tensors)) * CHUNK + tl.arange(0, CHUNK)
    param = tl.load(params + at, mask=at < size)
    grad = tl.load(grads + at, mask=at < size) * sign + weight_decay * param
    kept = tl.load(velocities + at, mask=at < size) * momentum
    own = tl.where(tl.load(row + 6 * tensors) != 0, 0.0, decay)
    velocity = kept + tl.load(rates + tensor) * (grad + own * param)
    tl.store(velocities + at, velocity, mask=at < size)
    tl.store(params + at, param - velocity, mask=at < size)

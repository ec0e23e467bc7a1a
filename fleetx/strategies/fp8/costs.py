"""What products in float8 change of the time and the memory that a plan takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fleetx.plan.operators import Blank
from fleetx.plan.share import Share, Waiting
from fleetx.strategies.fp8.layers import Layer

if TYPE_CHECKING:
    from fleetx.plan.trace import Operation, Trace

UNFUSED = 25
"""Bytes that torch's operators of a cast read and write for each number, beside four times its own
size: its magnitude, a float32 copy, the scaled and the clamped one."""
CASTS = 2
"""How often each factor is brought to float8 for the three products of a layer: gradients and
weights in two layouts, inputs for forward and backward."""
OF_ROWS = 2
"""Bytes that our kernels write for each number of inputs and gradients, by rows and by columns."""
OF_WEIGHTS = 3 * 4 + 2
"""Bytes for each number of a weight, which is read for its largest one, for the forward and again
for the backward, in float32."""


@dataclass(frozen=True)
class _Multiplied:
    """One product of a layer in a forward."""

    at: int
    """Which operator it is."""
    layer: Layer
    rows: int
    itemsize: int
    """Of the numbers that it would multiply."""
    inputs: int
    """The memory of its rows."""


def in_float8(share: Share, layers: Sequence[Layer], *, by_row: bool) -> Share:
    """What a rank computes, and what waits for its backward."""
    trace = share.trace
    assert trace is not None
    found = _multiplied(share, layers)
    paths = {one.layer.path for one in found}
    times = {one.part: one.times for one in share.waiting}
    kept = [one for one in share.waiting if one.path not in paths]
    fresh = max(trace.values, default=0)
    for number, one in enumerate(found):
        operation = trace.operations[one.at]
        if operation.part not in share.parts:
            continue
        size = one.rows * one.layer.inputs * (one.itemsize if by_row else 1)
        value = one.inputs if by_row else fresh + 1 + number
        place = one.layer.path, operation.part, size, times.get(operation.part, 1)
        kept.append(Waiting(value, *place))
    if share.mesh["tp"] > 1 and not by_row:
        share = share.without_knowledge(
            "how much smaller float8 copies of inputs are where tensor_parallel cuts a layer; they "
            "are counted whole"
        )
    share = replace(share, waiting=tuple(kept))
    if (work := share.work) is None:
        return share
    every = np.zeros(len(trace.operations), np.bool_)
    every[[one.at for one in found]] = True
    mask = every[np.isin(trace.part_of_each, share.parts)]
    # What somebody measured was a product of other numbers.
    unknown = np.where(mask, np.nan, 0.0)
    work = replace(
        work,
        bits=np.where(mask, 8, work.bits),
        forward_seconds=work.forward_seconds + unknown,
        backward_seconds=work.backward_seconds + unknown,
    )
    return replace(share, work=work)


def cast_bytes(share: Share, layers: Sequence[Layer], *, by_kernels: bool) -> float:
    """Bytes that are moved to bring the factors of a micro-batch to float8."""
    trace = share.trace
    assert trace is not None
    moved = 0
    for one in _multiplied(share, layers):
        if trace.operations[one.at].part in share.parts:
            sizes = one.layer.inputs, one.layer.outputs
            rows, weights = one.rows * sum(sizes), sizes[0] * sizes[1]
            if by_kernels:  # rows are read for their largest number and once more
                moved += rows * (2 * one.itemsize + OF_ROWS) + weights * OF_WEIGHTS
            else:
                moved += CASTS * rows * (4 * one.itemsize + UNFUSED)
                moved += CASTS * weights * (4 * 4 + UNFUSED)
    return moved / share.mesh["tp"]


def _multiplied(share: Share, layers: Sequence[Layer]) -> list[_Multiplied]:
    trace = share.trace
    assert trace is not None
    # Rows are as many as the batch has: a trace of another size has other ones.
    key = "fp8 products", id(trace), tuple(layer.path for layer in layers)
    return share.subject.once(key, lambda: _found(trace, {one.path: one for one in layers}))


def _found(trace: "Trace", layers: dict[str, Layer]) -> list[_Multiplied]:
    found = []
    for at, one in enumerate(trace.operations):
        layer = layers.get(one.path)
        if layer is not None and one.count.kind == "product":
            rows = one.count.operations // (2 * layer.inputs * layer.outputs)
            place = at, layer, rows, one.count.dtype.itemsize
            found.append(_Multiplied(*place, _rows(one)))
    return found


def _rows(one: "Operation") -> int:
    """The memory of what a layer multiplies by its weight: the factor before the last argument."""
    factor: Blank = one.signature.args[-2]
    return one.reads[factor.place]

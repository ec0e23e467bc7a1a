"""How inductor calls products and convolutions: not always as they would be by themselves."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import isnan
from typing import Any

import torch

from fleetx.plan.operators import Blank, Signature
from fleetx.plan.trace import Number, Operation
from fleetx.plan.work import Clock
from fleetx.torch_internals import tree_map

ALIGNED = 16
"""Bytes of which inductor makes each row of a factor a multiple, so that the fast kernels of cards
take it: 50,257 words become 50,264."""
_FACTORS = {"addmm": (1, 2), "bmm": (0, 1), "mm": (0, 1)}
"""Product -> its arguments that are multiplied."""
_SMALL = 64
"""Channels; where no convolution has more, nothing is won."""


def called_in_code(one: Operation, *, on_card: bool, channels_last: bool) -> Signature | None:
    """With what compiled code calls an operator, where that is not what eager code does."""
    if one.count.kind == "convolution" and channels_last:
        return _in_channels_last(one.signature)
    if one.count.kind == "product" and on_card:
        return _padded(one.signature)
    return None


def wants_channels_last(operations: Collection[Operation], *, on_card: bool) -> bool:
    """Whether inductor brings the convolutions of one piece of code to that layout.

    Its rule for training: on cards not beside ones that are grouped, that have many fewer
    channels afterwards, or if all of them are small.
    """
    found = [one for one in operations if one.count.kind == "convolution"]
    weights = [one.signature.args[1].shape for one in found]
    if not found or any(len(weight) != 4 for weight in weights):
        return False
    if not on_card:
        return True
    grouped = any(
        one.signature.args[8] > 1 and weight[1] > 1 if len(one.signature.args) > 8 else False
        for one, weight in zip(found, weights, strict=True)
    )
    fewer = any(weight[0] * 2 <= weight[1] and weight[2] > 1 for weight in weights)
    small = all(max(weight[:2]) <= _SMALL for weight in weights)
    return not (grouped or fewer or small)


def times_in_code(
    one: Operation, called: Signature, wanted: Collection[Number], clock: Clock
) -> tuple[float, float]:
    """How many times as long as by itself it takes in code: forward and backward."""
    before, after = clock(one, wanted), clock(replace(one, signature=called), wanted)
    if any(isnan(seconds) for seconds in (*before, *after)):
        return 1.0, 1.0
    if one.count.kind == "product":  # of which inductor tries both ways
        filled = _filling(one, called, clock)
        after = after[0] + filled[0], after[1] + filled[1]
    forward, backward = (new / old if old else 1.0 for old, new in zip(before, after, strict=True))
    if one.count.kind == "product":
        return min(1.0, forward), min(1.0, backward)
    return forward, backward


def _filling(one: Operation, called: Signature, clock: Clock) -> tuple[float, float]:
    """Seconds to copy what is not aligned: factors, and in backward the gradient of the result."""
    places = _FACTORS[_name(called)]
    pairs = [(one.signature.args[at], called.args[at]) for at in places]
    factors = sum(_copied(one, before, after, clock) for before, after in pairs)
    (first, second), (wide, high) = zip(*pairs, strict=True)
    result, aligned = (
        replace(a, shape=(*a.shape[:-1], b.shape[-1]), stride=_rows(a.shape[:-1], b.shape[-1]))
        for a, b in ((first, second), (wide, high))
    )
    return factors, factors + _copied(one, result, aligned, clock)


def _copied(one: Operation, before: Blank, after: Blank, clock: Clock) -> float:
    """Nothing for what stays as it is, and where nobody can tell."""
    if before.shape == after.shape:
        return 0.0
    called = Signature(torch.ops.aten.clone.default, (after,), {})
    seconds, _ = clock(replace(one, signature=called), ())
    return 0.0 if isnan(seconds) else seconds


def _rows(before: Sequence[int], columns: int) -> tuple[int, ...]:
    """Strides of a tensor that lies row by row."""
    strides = [1]
    for size in reversed((*before[1:], columns)):
        strides.insert(0, strides[0] * size)
    return tuple(strides)


def _in_channels_last(called: Signature) -> Signature | None:
    def leaf(value: Any) -> Any:
        if not isinstance(value, Blank) or len(value.shape) != 4:
            return value
        made = torch.empty(value.shape, device="meta").to(memory_format=torch.channels_last)
        return replace(value, stride=tuple(made.stride()))

    changed = replace(called, args=tree_map(leaf, called.args))
    return None if changed == called else changed


def _padded(called: Signature) -> Signature | None:
    name = _name(called)
    if name not in _FACTORS:
        return None
    first, second = (called.args[at] for at in _FACTORS[name])
    if not first.dtype.is_floating_point or first.dtype.itemsize > 4:
        return None
    multiple = ALIGNED // first.dtype.itemsize
    args = list(called.args)
    for at in _FACTORS[name]:
        args[at] = _rounded(args[at], multiple)
    if name == "addmm":
        args[0] = _as_wide(args[0], second.shape[-1], args[2].shape[-1])
    changed = replace(called, args=tuple(args))
    return None if changed == called else changed


def _name(called: Signature) -> str:
    return str(called.operator.overloadpacket).rpartition(".")[2]


def _rounded(factor: Blank, multiple: int) -> Blank:
    """Both dimensions as multiples, in the order in which they lie in memory."""
    *batch, rows, columns = (
        n if n == 1 or at < len(factor.shape) - 2 else -(-n // multiple) * multiple
        for at, n in enumerate(factor.shape)
    )
    shape = (*batch, rows, columns)
    if shape == factor.shape:
        return factor
    turned = factor.stride[-1] != 1 and factor.stride[-2] == 1
    inner = (1, rows) if turned else (columns, 1)
    return replace(factor, shape=shape, stride=(*(rows * columns for _ in batch), *inner))


def _as_wide(bias: Blank, before: int, after: int) -> Blank:
    """A bias with as many columns as the product that it is added to."""
    if bias.shape[-1] != before or before == after:
        return bias
    shape = (*bias.shape[:-1], after)
    return replace(bias, shape=shape, stride=(*(0 for _ in bias.shape[:-1]), 1))

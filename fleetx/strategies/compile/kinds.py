"""What code of a compiler does with an operator of torch."""

from enum import Enum
from functools import cache
from typing import Any

import torch

from fleetx.plan.trace import Operation


class Kind(Enum):
    """How an operator stands to those around it."""

    ALONE = "a kernel of its own, whose result is never computed twice"
    SAMPLED = "fused, and never computed twice: what it draws, picks or puts together"
    FUSED = "fused with its neighbours, and computed again where that saves memory"
    ROWS = "fused: a row that stays in the cache is read once"
    STATISTICS = "fused behind figures over all rows, for which everything is read once more"


_ROWS = {
    "_fused_rms_norm",
    "_log_softmax",
    "_safe_softmax",
    "_softmax",
    "native_group_norm",
    "native_layer_norm",
}
_STATISTICS = {
    "_batch_norm_with_update",
    "_native_batch_norm_legit",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "native_batch_norm",
}
_SAMPLED = {
    "_adaptive_avg_pool2d",
    "avg_pool2d",
    "cat",
    "embedding",
    "max_pool2d_with_indices",
    "native_dropout",
    "nll_loss_forward",
    "stack",
}
_FUSED = {
    "_to_copy",
    "_unsafe_view",
    "amax",
    "amin",
    "any",
    "arange",
    "argmax",
    "clone",
    "copy",
    "empty",
    "empty_like",
    "fill",
    "full",
    "full_like",
    "gather",
    "index",
    "linalg_vector_norm",
    "mean",
    "new_zeros",
    "ones",
    "ones_like",
    "scalar_tensor",
    "select_backward",
    "slice_backward",
    "std",
    "sum",
    "triu",
    "tril",
    "var",
    "var_mean",
    "zero",
    "zeros",
    "zeros_like",
}
_SIGNS = {"clamp", "clamp_min", "hardtanh", "leaky_relu", "relu", "threshold"}
_RESULTS = {
    "_log_softmax",
    "_safe_softmax",
    "_softmax",
    "exp",
    "reciprocal",
    "relu",
    "rsqrt",
    "sigmoid",
    "sqrt",
    "tanh",
    "threshold",
}
_PICKED = {"embedding", "gather", "index", "index_select"}
_SHAPES = {"_adaptive_avg_pool2d", "avg_pool2d", "mean", "nll_loss_forward", "sum"}


def name_of(one: Operation) -> str:
    """Such as ``add``, also for what writes its result over what it was given."""
    return _name(one.signature.operator)


@cache
def _name(operator: Any) -> str:
    name = str(operator.overloadpacket).rpartition(".")[2]
    return name if name.startswith("__") else name.rstrip("_")


def kind_of(one: Operation) -> Kind:
    """Of an operator that is no view."""
    return Kind.ALONE if one.count.operations else _kind(one.signature.operator)


@cache
def _kind(operator: Any) -> Kind:
    name = _name(operator)
    if name in _STATISTICS:
        return Kind.STATISTICS
    if name in _ROWS:
        return Kind.ROWS
    if name in _SAMPLED or torch.Tag.nondeterministic_seeded in operator.tags:
        return Kind.SAMPLED
    return Kind.FUSED if name in _FUSED or _is_pointwise(operator) else Kind.ALONE


def _is_pointwise(operator: Any) -> bool:
    """Whether torch says so, of it or of its form that writes a new result."""
    plain = getattr(torch.ops.aten, _name(operator), None)
    forms = (operator, *(getattr(plain, name) for name in plain.overloads())) if plain else ()
    return any(torch.Tag.pointwise in form.tags for form in forms)


def draws(one: Operation) -> bool:
    """Whether it draws a mask, of which code keeps a byte for each number."""
    return name_of(one) == "bernoulli"


def keeps_places(one: Operation) -> bool:
    """Whether its backward needs the places of what it found, a byte each, and nothing it read."""
    return name_of(one) == "max_pool2d_with_indices"


def needs_signs(one: Operation) -> bool:
    """Whether its backward asks of each number on which side of a limit it lies."""
    return name_of(one) in _SIGNS


def saves_its_result(one: Operation) -> bool:
    """Whether the rule of its gradient is written with what it returned."""
    return name_of(one) in _RESULTS


def picks(one: Operation) -> bool:
    """Whether it reads no more of a table than it returns."""
    return name_of(one) in _PICKED


def needs_shapes(one: Operation) -> bool:
    """Whether its backward asks for nothing but shapes, and autograd keeps numbers for them."""
    return name_of(one) in _SHAPES


def rows_of(one: Operation) -> int:
    """How many rows a softmax has, whose largest number and sum are kept; 0 for others."""
    if "softmax" not in name_of(one):
        return 0
    shape, dim = one.signature.args[0].shape, one.signature.args[1]
    length = shape[dim] if shape else 1
    total = 1
    for size in shape:
        total *= size
    return int(total // max(1, length))

"""``paddle.fluid.contrib.layers.nn``: what models of recommendation use beside plain layers."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fleetx.compat import unique_names
from fleetx.compat.paddle.fluid.layers.activation import relu
from fleetx.compat.paddle.fluid.layers.common import activated
from fleetx.compat.paddle.fluid.layers.elementwise import elementwise_add, elementwise_mul
from fleetx.compat.paddle.fluid.layers.linear import BIAS, WEIGHT, embedding
from fleetx.compat.paddle.fluid.layers.ops import sigmoid, tanh
from fleetx.compat.paddle.fluid.layers.reduction import scale as scaled
from fleetx.compat.paddle.fluid.layers.sequence import sequence_pool
from fleetx.compat.paddle.static.nn import sparse_embedding
from fleetx.compat.parameters import create
from fleetx.compat.recorded import settle

__all__ = [
    "batch_fc",
    "fused_elemwise_activation",
    "fused_embedding_seq_pool",
    "partial_concat",
    "partial_sum",
    "shuffle_batch",
    "sparse_embedding",
]


def shuffle_batch(x: Any, seed: Any = None) -> Any:
    """The same rows in another order, drawn anew for each batch."""
    sizes = list(x.shape)
    rows = torch.reshape(x, (-1, sizes[-1]))
    drawn = torch.rand_like(torch.Tensor.to(rows[:, 0], torch.float32))
    return torch.reshape(torch.index_select(rows, 0, torch.argsort(drawn)), sizes)


def _columns(input: Any, start_index: int, length: int) -> list[Any]:
    given = list(input) if isinstance(input, (list, tuple)) else [input]
    found = []
    for x in given:
        width = int(x.shape[1])
        begin = start_index + width if start_index < 0 else start_index
        found.append(torch.narrow(x, 1, begin, width - begin if length < 0 else length))
    return found


def partial_concat(input: Any, start_index: int = 0, length: int = -1) -> Any:
    """Some columns of every input, side by side."""
    return torch.cat(_columns(input, start_index, length), 1)


def partial_sum(input: Any, start_index: int = 0, length: int = -1) -> Any:
    """The sum of some columns of every input."""
    parts = _columns(input, start_index, length)
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    return found


def batch_fc(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    param_size: Sequence[int],
    param_attr: Any,
    bias_size: Sequence[int],
    bias_attr: Any,
    act: Any = None,
) -> Any:
    """A layer of its own for every slot: [slots, batch, in] by [slots, in, out]."""
    settle(input)
    layer = unique_names.generate("batch_fc")
    weight = create(layer, param_attr, list(param_size), input.dtype, default=WEIGHT)
    bias = create(layer, bias_attr, list(bias_size), input.dtype, default=BIAS, is_bias=True)
    found = torch.bmm(input, weight)
    return activated(found if bias is None else found + bias[:, None, :], act)


def fused_embedding_seq_pool(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    size: Sequence[int],
    is_sparse: bool = False,
    padding_idx: int | None = None,
    combiner: str = "sum",
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Any:
    """Rows of a table by ids, added for every record."""
    if combiner != "sum":
        raise ValueError(f"fused_embedding_seq_pool(combiner={combiner!r}) knows 'sum' alone.")
    rows = embedding(input, size, is_sparse, False, padding_idx, param_attr, dtype)
    return sequence_pool(rows, "sum")


_BINARY: dict[str, Callable[..., Any]] = {
    "elementwise_add": elementwise_add,
    "elementwise_mul": elementwise_mul,
}
_UNARY: dict[str, Callable[[Any, float], Any]] = {
    "relu": lambda x, scale: relu(x),
    "tanh": lambda x, scale: tanh(x),
    "sigmoid": lambda x, scale: sigmoid(x),
    "scale": scaled,
}


def fused_elemwise_activation(  # noqa: PLR0917 (the order of Paddle)
    x: Any,
    y: Any,
    functor_list: Sequence[str] | str,
    axis: int = -1,
    scale: float = 0.0,
    save_intermediate_out: bool = True,
) -> Any:
    """A function of one tensor and one of two, the second of the list inside of the first."""
    named = functor_list.split(",") if isinstance(functor_list, str) else list(functor_list)
    outer, inner = (name.strip() for name in named)
    if outer in _BINARY and inner in _UNARY:
        return _BINARY[outer](x, _UNARY[inner](y, scale), axis)
    if outer in _UNARY and inner in _BINARY:
        return _UNARY[outer](_BINARY[inner](x, y, axis), scale)
    raise ValueError(
        f"fused_elemwise_activation(functor_list={named}) needs one of {', '.join(_BINARY)} and "
        f"one of {', '.join(_UNARY)}."
    )

"""Layers that look rows of a table up."""

from collections.abc import Sequence

from torch import Tensor, nn

from fleetx.static.layers import Attr, layer
from fleetx.static.variable import Variable, as_variable


def embedding(
    input: Tensor,
    size: tuple[int, int] | Sequence[int],
    *,
    is_sparse: bool = False,
    padding_idx: int | None = None,
    param_attr: Attr = None,
    name: str | None = None,
) -> Variable:
    """One row of a table for each id; ``is_sparse`` makes gradients of the rows that were used."""
    rows, width = size
    module = layer(
        "embedding",
        lambda: nn.Embedding(rows, width, padding_idx=padding_idx, sparse=is_sparse),
        name=name,
        weight=param_attr,
    )
    return as_variable(module(input), "a layer")


def sparse_embedding(
    input: Tensor,
    size: tuple[int, int] | Sequence[int],
    *,
    padding_idx: int | None = None,
    param_attr: Attr = None,
    name: str | None = None,
) -> Variable:
    """A large table of which a batch touches few rows: gradients are sparse.

    Optimizers that take sparse gradients train it: SGD, Adagrad, SparseAdam.
    """
    return embedding(
        input, size, is_sparse=True, padding_idx=padding_idx, param_attr=param_attr, name=name
    )

"""Tensors as torch's own code wants them, without Paddle's methods."""

from typing import Any

import torch
from torch import Tensor

from fleetx.record.variable import Variable
from fleetx.torch_internals import tree_map, without_torch_function


def plain(value: Any) -> Any:
    """The same tensors with torch's own methods; gradients flow through."""
    return tree_map(_one, value)


def _one(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or isinstance(leaf, Variable) or type(leaf) is Tensor:
        return leaf
    # Inside, results would become tensors of the same kind again.
    with without_torch_function():
        return leaf.as_subclass(torch.Tensor)

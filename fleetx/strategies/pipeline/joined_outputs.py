"""Outputs of micro-batches as those of one batch, where they can be joined."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fleetx.torch_internals import tree_flatten, tree_unflatten

_PLAIN = bool | int | float | str | None


def joined(outputs: Sequence[Any]) -> Any:
    """The outputs of all micro-batches as those of one batch; tensors follow each other."""
    if len(outputs) == 1:
        return outputs[0]
    flat = [tree_flatten(output)[0] for output in outputs]
    leaves = [
        torch.cat(list(same)) if isinstance(same[0], Tensor) else same[0]
        for same in zip(*flat, strict=True)
    ]
    return tree_unflatten(leaves, tree_flatten(outputs[0])[1])


def grows(less: Any, few: int, more: Any, many: int) -> bool:
    """Whether outputs have one row per sample, given those of few samples and of many.

    A mean has none, and a transposed output or one with a row per pair of samples has its samples
    elsewhere too: of these, parts do not make up a whole.
    """
    (ours, spec), (theirs, other) = tree_flatten(less), tree_flatten(more)
    if spec != other:
        return False
    return all(
        _rows(a, few) and _rows(b, many) and a.shape[1:] == b.shape[1:]
        if isinstance(a, Tensor) and isinstance(b, Tensor)
        else isinstance(a, _PLAIN) and isinstance(b, _PLAIN) and a == b
        for a, b in zip(ours, theirs, strict=True)
    )


def _rows(tensor: Tensor, samples: int) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] == samples

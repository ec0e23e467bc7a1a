"""A batch of another size than the one that a user has shown, and a loss where none was given."""

from typing import Any

import torch
from torch import Tensor

from fleetx.torch_internals import tree_leaves, tree_map


def sized(tree: Any, samples: int) -> Any:
    """The same with so many samples, some of them twice if need be."""
    leaves = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.ndim)
    before = next((len(leaf) for leaf in leaves), samples)

    def cut(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.ndim or len(leaf) != before:
            return leaf
        return leaf[torch.arange(samples, device=leaf.device) % before]

    return tree_map(cut, tree)


def mean(outputs: Any, targets: Any) -> Tensor:
    """A loss of whatever a model returns, where the user's own cannot be called yet."""
    leaves = (leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor))
    losses = [leaf.float().mean() for leaf in leaves if leaf.is_floating_point()]
    return torch.stack([loss for loss in losses if loss.requires_grad]).sum()

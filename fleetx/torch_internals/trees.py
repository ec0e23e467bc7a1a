"""Nested lists, tuples and dicts, as torch itself walks through them."""

from torch.utils._pytree import (
    SUPPORTED_NODES,
    TreeSpec,
    tree_any,
    tree_flatten,
    tree_iter,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_unflatten,
    treespec_dumps,
    treespec_loads,
)

__all__ = [
    "SUPPORTED_NODES",
    "TreeSpec",
    "tree_any",
    "tree_flatten",
    "tree_iter",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
    "treespec_dumps",
    "treespec_loads",
]

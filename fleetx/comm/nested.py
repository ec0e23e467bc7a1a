"""Tensors inside of whatever models take and return: tuples, dicts, dataclasses and the like."""

import copy
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from fleetx.torch_internals import SUPPORTED_NODES, tree_flatten, tree_unflatten


def mapped(change: Callable[[Tensor], Any], values: Any) -> Any:
    """The same structure, of the same types, with every tensor changed."""
    if isinstance(values, Tensor):
        return change(values)
    if type(values) in SUPPORTED_NODES or not isinstance(values, _KINDS):
        leaves, spec = tree_flatten(values)
        if len(leaves) == 1 and leaves[0] is values:
            return _attributes(change, values) if _has_fields(values) else values
        return tree_unflatten([mapped(change, leaf) for leaf in leaves], spec)
    if isinstance(values, Mapping):
        return _items(change, values)
    made = [mapped(change, value) for value in values]
    # A tuple with names takes them one by one.
    return type(values)(*made) if hasattr(values, "_fields") else type(values)(made)


_KINDS = (Mapping, tuple, list)


def _has_fields(values: Any) -> bool:
    return is_dataclass(values) and not isinstance(values, type)


def _attributes(change: Callable[[Tensor], Any], values: Any) -> Any:
    """A copy of a dataclass, without a call of its constructor, which may do more than keep."""
    made = copy.copy(values)
    for field in fields(values):
        if hasattr(values, field.name):
            # A frozen one, too, is still being made.
            object.__setattr__(made, field.name, mapped(change, getattr(values, field.name)))
    return made


def _items(change: Callable[[Tensor], Any], values: Mapping[Any, Any]) -> Any:
    """A copy of a dict of some kind, which may show its items as fields, too."""
    if not isinstance(values, MutableMapping):
        return values
    made = _attributes(change, values) if _has_fields(values) else copy.copy(values)
    for key, value in values.items():
        made[key] = mapped(change, value)
    return made

"""Tensors inside of whatever models take and return: tuples, dicts, dataclasses and the like."""

import copy
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Set
from dataclasses import fields, is_dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

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
_CLOSED = (
    *(str, bytes, int, float, complex, type, type(None), torch.dtype, torch.device),
    *(FunctionType, ModuleType, nn.Module),
)
"""What holds no tensors, or holds others than those that were computed."""


def tensors(values: Any) -> list[Tensor]:
    """Every tensor in a structure, those in attributes of any object included.

    A distribution of torch, or a graph of torch_geometric, is one leaf to torch itself.
    """
    found: list[Tensor] = []
    met: dict[int, Any] = {}  # held, so that nothing new takes the place of something met
    left = [values]
    while left:
        value = left.pop()
        if id(value) in met or isinstance(value, _CLOSED):
            continue
        met[id(value)] = value
        if isinstance(value, Tensor):
            found.append(value)
        else:
            left += _inside(value)
    return found


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, (tuple, list, Set)):
        return value
    if type(value) in SUPPORTED_NODES:
        return list(SUPPORTED_NODES[type(value)].flatten_fn(value)[0])
    held = [*getattr(value, "__dict__", {}).values()]
    slots = {name for cls in type(value).__mro__ for name in _slots(cls)}
    held += [getattr(value, name) for name in slots if hasattr(value, name)]
    return [*held, *value.values()] if isinstance(value, Mapping) else held


def _slots(cls: type) -> Iterable[str]:
    names = vars(cls).get("__slots__", ())
    every = (names,) if isinstance(names, str) else names
    return (name for name in every if not name.startswith("__"))


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

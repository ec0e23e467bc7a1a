"""Whether two calls of submodules do the same, as far as shapes can tell."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.torch_internals import has_forward_hooks, storage_number

PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
_NUMBER = "its own number"
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def likeness(module: nn.Module, path: str) -> Hashable | None:
    """Equal for submodules that do the same with inputs of the same shapes; None if none can be.

    Classes, plain attributes, and shapes of parameters and buffers decide, of all that is inside.
    Anything else that an attribute holds must be the same object. An integer that is the number of
    the submodule in its list, such as ``layers.7``, tells where it is and not what it does.
    """
    last = path.rpartition(".")[2]
    number = int(last) if last.isdigit() else None
    found: list[Hashable] = []
    for name, part in module.named_modules():
        if has_forward_hooks(part):
            return None  # whoever listens there wants to be called for each of them
        found.append((name, type(part), part.training, *_attributes(part, number)))
        found += (
            (key, tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
            for key, tensor in _tensors(part)
        )
    return tuple(found)


def _tensors(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from part.named_parameters(recurse=False)
    yield from part.named_buffers(recurse=False)


def _attributes(part: nn.Module, number: int | None) -> Iterator[Hashable]:
    for key, value in vars(part).items():
        if key not in _OF_EVERY_MODULE:
            yield key, _plain(value, number)


def _plain(value: Any, number: int | None) -> Hashable:
    if isinstance(value, int) and not isinstance(value, bool) and value == number:
        return _NUMBER
    if isinstance(value, PLAIN):
        return type(value), value
    if type(value) in (tuple, list):
        return tuple(_plain(one, number) for one in value)
    if type(value) is dict:
        return tuple((repr(key), _plain(one, number)) for key, one in value.items())
    if isinstance(value, Mapping) and not value:
        return ()
    return id(value)


Geometry = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]
"""Sizes, strides, offset and number format of a tensor."""


def geometry(tensor: Tensor) -> Geometry:
    """How a tensor lies in its memory."""
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype


def inputs_alike(leaves: Iterable[Any]) -> Hashable | None:
    """Equal for arguments with which equal submodules do the same; None if that is unknown.

    Tensors are alike in their geometry and in which of them share memory, other values equal.
    """
    seen: dict[int, int] = {}
    found: list[Hashable] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            place = seen.setdefault(storage_number(leaf), len(seen))
            found.append((place, geometry(leaf), leaf.requires_grad))
        elif isinstance(leaf, PLAIN):
            found.append((type(leaf), leaf))
        else:
            return None
    return tuple(found)

"""How much one operator of torch computes and moves, by the shapes of what it reads and makes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from fleetx.torch_internals import attention_on_cpu, is_mutable, tree_leaves, tree_map

Kind = Literal["product", "convolution", "attention", "other"]
KINDS: tuple[Kind, ...] = ("product", "convolution", "attention", "other")
"""Operators of one kind reach about the same part of what a device can do."""


@dataclass(frozen=True, slots=True)
class Count:
    """What one operator takes."""

    kind: Kind
    dtype: torch.dtype
    """The number format it computes in."""
    operations: int
    """Multiplications and additions."""
    moved: int
    """Bytes that it reads and writes; 0 for a view."""

    def grown(self, other: "Count", more: Callable[[int, int], int]) -> "Count":
        """With numbers that lie beyond those of the same operator on a larger batch."""
        operations, moved = more(self.operations, other.operations), more(self.moved, other.moved)
        return Count(self.kind, self.dtype, operations, moved)


@dataclass(frozen=True, slots=True)
class Blank:
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    place: int
    """Its memory is this one of those that the operator reads."""
    offset: int = 0
    """Where in that memory it begins, in numbers."""

    @property
    def size(self) -> int:
        """In bytes."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Signature:
    """With what an operator was called, so that it can be called once more."""

    operator: Any
    args: Any
    kwargs: Any
    """As it was called, with a `Blank` for each tensor."""


def signature(
    operator: Any, args: Any, kwargs: Mapping[str, Any], place: Callable[[Tensor], int]
) -> Signature:
    """Of a call; `place` says in which of the memory that it reads a tensor lies."""

    def blank(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        shape, stride = tuple(leaf.shape), tuple(leaf.stride())
        return Blank(shape, stride, leaf.dtype, place(leaf), int(leaf.storage_offset()))

    return Signature(operator, *tree_map(blank, (args, dict(kwargs))))


def counted(
    operator: Any, args: Any, kwargs: Mapping[str, Any], result: Any, *, is_view: bool
) -> Count:
    """What an operator takes; what it is called with need not have numbers."""
    made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    packet = operator.overloadpacket
    dtype = next((one.dtype for one in made), torch.float32)
    if is_view and not is_mutable(operator):
        return Count("other", dtype, 0, 0)
    read = [leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, Tensor)]
    moved = sum(_size(tensor) for tensor in (*read, *made))
    kind = kind_of(packet)
    if kind == "other":
        return Count(kind, dtype, 0, moved)
    formula = _FORMULAS.get(packet) or _BY_NAME.get(str(packet)) or flop_registry[packet]
    operations = int(formula(*args, **kwargs, out_val=result))
    return Count(kind, dtype, operations, moved)


def kind_of(packet: Any) -> Kind:
    """What an operator is, by the name of it."""
    name = str(packet)
    if packet not in flop_registry and packet not in _FORMULAS and name not in _BY_NAME:
        return "other"
    if "attention" in name:
        return "attention"
    return "convolution" if "conv" in name else "product"


def _size(tensor: Tensor) -> int:
    """What is read of a tensor: one that was expanded repeats itself."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(length for length, stride in pairs if stride or length == 1) * tensor.itemsize


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    batch, heads, length, width = query.shape
    return 2 * batch * heads * length * key.shape[-2] * (width + value.shape[-1])


def _grouped(rows: Tensor, *_: Any, out_val: Tensor, **__: Any) -> int:
    return 2 * out_val.numel() * rows.shape[-1]


_FORMULAS: dict[Any, Callable[..., int]] = {
    attention_on_cpu(): _attention,
}
"""Operators that torch's own counter does not know."""
_BY_NAME: dict[str, Callable[..., int]] = {
    "aten._grouped_mm": _grouped,
    "transformers.grouped_mm_fallback": _grouped,
}
"""Products of experts with the rows that are theirs, which not every version has."""

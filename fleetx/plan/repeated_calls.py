"""Blocks that a model repeats are followed once: of an equal one is known what it does."""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.graph.likeness import PLAIN, geometry, inputs_alike, likeness
from fleetx.graph.repeated_blocks import repeated_blocks
from fleetx.plan.trace import Noted, Tracing
from fleetx.torch_internals import TreeSpec, storage_number, tree_flatten, tree_unflatten

Blocks = Mapping[str, Hashable]
"""Path of a block -> equal for blocks that do the same."""


def blocks_of(model: nn.Module) -> Blocks:
    """The blocks that a model repeats, as far as it can be told what they do."""
    alike = {path: likeness(model.get_submodule(path), path) for path in repeated_blocks(model)}
    return {path: found for path, found in alike.items() if found is not None}


@dataclass(frozen=True)
class _Returned:
    """A tensor that a block returned."""

    number: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    wants_gradient: bool


@dataclass(frozen=True)
class _Followed:
    """What one call did."""

    path: str
    reads: tuple[int, ...]
    """Memory of what it was called with."""
    began: int
    """The moment before its first event."""
    noted: Noted
    outputs: Sequence[Any]
    """Plain values, and `_Returned` for tensors."""
    kind: TreeSpec


class RepeatedCalls:
    """Runs the first of several equal calls of blocks, and notes for the others the same.

    Args:
        tracing: what notes.
        model: whose blocks.
        blocks: those that may be alike.
    """

    def __init__(self, tracing: Tracing, model: nn.Module, blocks: Blocks) -> None:
        self._tracing, self._model, self._likeness = tracing, model, blocks
        self._known: dict[Hashable, _Followed] = {}

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Inside, blocks that are alike run once."""
        modules = {path: self._model.get_submodule(path) for path in self._likeness}
        for path, module in modules.items():
            vars(module)["forward"] = self._once(path, module.forward)
        try:
            yield
        finally:
            for module in modules.values():
                del vars(module)["forward"]

    def _once(self, path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            leaves, kind = tree_flatten((args, kwargs))
            told = self._told(leaves)
            if told is None:
                return forward(*args, **kwargs)
            key = self._likeness[path], str(kind), told, _mode(leaves)
            if (found := self._known.get(key)) is not None:
                return self._repeated(found, path, leaves)
            began, reads = self._tracing.now, self._tracing.numbers(leaves)
            before = self._tracing.lengths()
            output = forward(*args, **kwargs)
            noted = self._tracing.since(before)
            known = {*reads, *(number for number, _ in noted.values)}
            if (returned := _returned(output, known)) is not None:
                self._known[key] = _Followed(path, reads, began, noted, *returned)
            return output

        return called

    def _told(self, leaves: Collection[Any]) -> Hashable | None:
        """What decides how a call goes; None if something unknown may."""
        own = self._tracing.trace.own
        weights = (own.get(storage_number(leaf)) for leaf in leaves if isinstance(leaf, Tensor))
        alike = inputs_alike(leaves)
        return None if alike is None else (alike, *weights)

    def _repeated(self, known: _Followed, path: str, leaves: Sequence[Any]) -> Any:
        """Note once more what the call did that is known, and return what this one would."""
        tracing = self._tracing
        numbers = dict(zip(known.reads, tracing.numbers(leaves), strict=True))
        numbers |= dict(zip(self._own(known.path), self._own(path), strict=True))
        given = {storage_number(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}
        made: dict[int, Tensor] = {}
        outputs = []
        with tracing.paused():
            for one in known.outputs:
                if not isinstance(one, _Returned):
                    outputs.append(one)
                    continue
                if one.number not in made:
                    source = given.get(numbers.get(one.number, -1))
                    made[one.number] = _base(one, known.noted) if source is None else source
                base = made[one.number]
                same = geometry(base) == (one.shape, one.stride, one.offset, one.dtype)
                whole = base if same else base.as_strided(one.shape, one.stride, one.offset)
                outputs.append(whole)
        for old, size in known.noted.values:
            numbers[old] = tracing.made(size, made.get(old))
        tracing.again(known.noted, numbers, (known.path, path), since=known.began)
        return tree_unflatten(outputs, known.kind)

    def _own(self, path: str) -> tuple[int, ...]:
        block = self._model.get_submodule(path)
        named = (*block.named_parameters(), *block.named_buffers())
        return tuple(storage_number(tensor) for _, tensor in named)


def _returned(output: Any, known: Collection[int]) -> tuple[Sequence[Any], TreeSpec] | None:
    """What came out, in words; None if it is neither plain nor memory that is known."""
    leaves, kind = tree_flatten(output)
    found: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor) and (number := storage_number(leaf)) in known:
            shape = geometry(leaf)
            found.append(_Returned(number, *shape, leaf.device, leaf.requires_grad))
        elif isinstance(leaf, PLAIN):
            found.append(leaf)
        else:
            return None
    return found, kind


def _mode(leaves: Collection[Any]) -> Hashable:
    """What is around the call."""
    kinds = {leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)}
    casts = tuple(
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in sorted(kinds)
    )
    return torch.is_grad_enabled(), casts


def _base(one: _Returned, noted: Noted) -> Tensor:
    """Memory as large as that of what was returned; with a history, so that it may be changed."""
    size = next((size for number, size in noted.values if number == one.number), 0)
    made = torch.empty(max(1, size // one.dtype.itemsize), dtype=one.dtype, device=one.device)
    if one.wants_gradient:
        made = made.requires_grad_().clone()
    return made.as_strided(one.shape, one.stride, one.offset)

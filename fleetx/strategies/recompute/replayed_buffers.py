"""Buffers while a part of a forward is replayed: as they were, and the live ones untouched."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fleetx.torch_internals import buffers_of

Buffers = dict[nn.Module, dict[str, Tensor | None]]
"""Module -> its own buffers by name."""


def buffers(module: nn.Module) -> Buffers:
    """Copies of all buffers that a forward of the module may look at.

    Version counters cannot tell which ones it will change: BatchNorm moves its running statistics
    behind their back. In training it does not look at them, so those are not copied.
    """
    every = {owner: dict(buffers_of(owner)) for owner in module.modules() if buffers_of(owner)}
    read = {owner: named for owner, named in every.items() if not _writes_only(owner)}
    return every | _made(read, lambda buffer: buffer.detach().clone())


_scratch: WeakKeyDictionary[nn.Module, tuple[dict[str, Tensor | None], dict[str, Tensor | None]]]
_scratch = WeakKeyDictionary()
"""Module that only writes its buffers -> those buffers, and where replays write instead."""


def _replayed(before: Buffers) -> Buffers:
    """What a replay works on: copies once more, because a graph that is retained runs again."""
    read = {owner: named for owner, named in before.items() if not _writes_only(owner)}
    chosen = {owner: _written(owner) for owner in before if owner not in read}
    return chosen | _made(read, lambda buffer: buffer.detach().clone()) if read else chosen


def _written(owner: nn.Module) -> dict[str, Tensor | None]:
    """Kept for all replays: nobody reads what was written there."""
    live = buffers_of(owner)
    known, found = _scratch.get(owner, ({}, {}))
    if known.keys() != live.keys() or any(live[name] is not known[name] for name in live):
        found = {n: None if b is None else torch.empty_like(b) for n, b in live.items()}
        found["num_batches_tracked"] = None  # without it nothing is counted, which saves a kernel
        _scratch[owner] = dict(live), found
    return found


def _writes_only(module: nn.Module) -> bool:
    plain = type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return plain and module.training and "forward" not in vars(module)


def _made(found: Buffers, make: Callable[[Tensor], Tensor]) -> Buffers:
    """A buffer that has several names is made once."""
    every = {id(b): b for named in found.values() for b in named.values() if b is not None}
    made = {key: make(buffer) for key, buffer in every.items()}
    return {
        owner: {name: made.get(id(buffer)) for name, buffer in named.items()}
        for owner, named in found.items()
    }


@contextmanager
def as_before(before: Buffers) -> Iterator[None]:
    """Let modules work on copies of earlier buffers; the live ones come back untouched."""
    live = {owner: buffers_of(owner) for owner in before}
    for owner, named in _replayed(before).items():
        vars(owner)["_buffers"] = named  # quicker than through torch
    try:
        yield
    finally:
        for owner, named in live.items():
            vars(owner)["_buffers"] = named

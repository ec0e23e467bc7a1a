"""Modules that ``torch.func.functional_call`` gives other weights than their own."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from fleetx.torch_internals import buffers_of, parameters_of

Tensors = dict[nn.Module, dict[str, Tensor | None]]


class _Own(threading.local):
    """What modules hold themselves, while they may have been given something else."""

    tensors: Tensors

    def __init__(self) -> None:
        self.tensors = {}


_own = _Own()


def owned() -> Tensors:
    """What is remembered of modules now."""
    return _own.tensors


def held(module: nn.Module) -> Tensors:
    """What a module and its parts hold."""
    return {part: _held(part) for part in module.modules()}


@contextmanager
def owning(tensors: Tensors) -> Iterator[None]:
    """Remember what modules hold themselves; what was remembered before is older and counts."""
    before = _own.tensors
    _own.tensors = tensors | before
    try:
        yield
    finally:
        _own.tensors = before


def given_weights(module: nn.Module) -> bool:
    """Whether a module has other tensors than its own, so that a program must take those."""
    return bool(_own.tensors) and any(
        part in _own.tensors and _differ(_held(part), _own.tensors[part])
        for part in module.modules()
    )


def _held(module: nn.Module) -> dict[str, Tensor | None]:
    return {**parameters_of(module), **buffers_of(module)}


def _differ(now: dict[str, Tensor | None], own: dict[str, Tensor | None]) -> bool:
    return any(tensor is not own.get(name) for name, tensor in now.items())

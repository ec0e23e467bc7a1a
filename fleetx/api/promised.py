"""Weights that somebody promised to a model which is not laid out yet, and has no numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from torch import nn

from fleetx.engine.engine import Engine


@dataclass(frozen=True)
class Promise:
    """What will be loaded as soon as the model is laid out."""

    names: frozenset[str]
    """The tensors that come, which need not be drawn."""

    keep: Callable[[Engine], None]
    """Loads them into the shares of this worker."""


_promises: WeakKeyDictionary[nn.Module, Promise] = WeakKeyDictionary()


def promise(model: nn.Module, given: Promise) -> None:
    """Note what will be loaded; a later promise counts instead of an earlier one."""
    _promises[model] = given


def promised_to(model: nn.Module) -> Promise | None:
    """What was promised to a model, once."""
    return _promises.pop(model, None)

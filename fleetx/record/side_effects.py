"""What code changes beside what it returns: attributes of modules, and random states."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fleetx.torch_internals import version_of, without_torch_function


@contextmanager
def undone(module: nn.Module) -> Iterator[None]:
    """Leave a module and the random states as they are, whatever a call of the module does."""
    before = [Attributes(part) for part in module.modules()]
    dice = random_states()
    with without_torch_function():
        held = [(t, version_of(t), t.clone()) for part in before for t in part.tensors()]
    try:
        yield
    finally:
        for part in before:
            part.restore()
        with without_torch_function(), torch.no_grad():
            for tensor, version, value in held:
                if version_of(tensor) != version:
                    tensor.copy_(value)
        random.setstate(dice["random"])
        np.random.set_state(dice["numpy.random"])
        torch.set_rng_state(dice["torch"])


def random_states() -> dict[str, Any]:
    """Whoever draws random numbers without a card -> its state."""
    return {
        "random": random.getstate(),
        "numpy.random": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }


def drawn_from(before: dict[str, Any]) -> str | None:
    """Who drew random numbers since its state was this one."""
    now = random_states()
    if now["random"] != before["random"]:
        return "random"
    if not _same_numpy(now["numpy.random"], before["numpy.random"]):
        return "numpy.random"
    return None if torch.equal(now["torch"], before["torch"]) else "torch"


def _same_numpy(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


class Attributes:
    """Those of one module, with what its lists, dicts and sets hold."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._values = dict(module.__dict__)
        self._held = {key: _copy(value) for key, value in self._values.items() if _holds(value)}

    def tensors(self) -> list[Tensor]:
        """Those that are neither parameters nor buffers."""
        return [value for value in self._values.values() if isinstance(value, Tensor)]

    def restore(self) -> list[str]:
        """Put everything back; the names of what differed."""
        now = self._module.__dict__
        names = [*self._values, *(key for key in now if key not in self._values)]
        different = [key for key in names if now.get(key, self) is not self._values.get(key, self)]
        if different:
            now.clear()
            now.update(self._values)
        for key, held in self._held.items():
            value = self._values[key]
            if not _same(value, held):
                different.append(key)
                value.clear()
                (value.extend if isinstance(value, list) else value.update)(held)
        return different


def _holds(value: Any) -> bool:
    return isinstance(value, dict | list | set)


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else type(value)(value)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(map(id, one)) == list(map(id, other)) and _ids(one.values()) == _ids(
            other.values()
        )
    return _ids(one) == _ids(other)


def _ids(values: Any) -> list[int]:
    return [id(value) for value in values]

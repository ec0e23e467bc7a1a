"""What a forward must leave alone while it is followed: modes, modules, random state."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from fleetx.strategies.pipeline.refusal import REMEDY, TraceError
from fleetx.torch_internals import saved_tensor_hooks

_DEVICES = ("cpu", "cuda")


def regions() -> dict[str, Any]:
    """The modes that a region of code may switch, by what to say about them."""
    return {
        "gradients are switched on or off": (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
        ),
        "autocast is switched": tuple(
            (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            for device in _DEVICES
        ),
        "the default dtype is switched": torch.get_default_dtype(),
        "the default device is switched": torch.get_default_device(),
        "what backward keeps is switched, as checkpoint() does": saved_tensor_hooks(),
        "the kernels of attention are switched": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.cudnn_sdp_enabled(),
        ),
    }


def switched(before: Mapping[str, Any]) -> str | None:
    """Which mode differs from what it was before, if any."""
    now = regions()
    return next((name for name, state in before.items() if now[name] != state), None)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put back whatever changes in the model, and refuse a forward that changed something."""
    before = {name: _Fields(module) for name, module in model.named_modules()}
    dice = _dice()
    try:
        yield
    except BaseException:
        for fields in before.values():
            fields.restore()
        raise
    changes = [f"{name}.{key}".lstrip(".") for name, f in before.items() for key in f.restore()]
    if changes:
        raise TraceError(
            f"the forward changes {', '.join(repr(name) for name in changes)} of the model, which "
            f"would happen once instead of at every step: {REMEDY}."
        )
    for name, state in _dice().items():
        if state != dice[name]:
            raise TraceError(
                f"the forward draws random numbers from {name}, which would be the same at every "
                f"step: {REMEDY}."
            )


def _dice() -> dict[str, Any]:
    of_numpy = np.random.get_state(legacy=False)["state"]
    return {
        "random": random.getstate(),
        "numpy.random": (of_numpy["key"].tolist(), of_numpy["pos"]),
        "torch": torch.get_rng_state().tolist(),
    }


class _Fields:
    """The attributes of one module, with what its lists, dicts and sets hold."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._values = dict(module.__dict__)
        self._held = {key: _copy(value) for key, value in self._values.items() if _holds(value)}

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

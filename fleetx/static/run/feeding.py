"""What is fed to a program: checked, and brought to the device."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from fleetx.plan.option import unknown
from fleetx.record.error import ProgramError
from fleetx.record.shapes import FREE
from fleetx.static.record.program import Program

Looks = list[tuple[str, Any, Any, Any]]


class Feeds:
    """Turns a feed into the arguments of a lowered program."""

    def __init__(self, program: Program, needed: Collection[str], device: torch.device) -> None:
        self._program, self._device, self._on_host = program, device, device.type == "cpu"
        self._inputs = program.inputs()
        self._needed = [name for name in self._inputs if name in needed]
        self._good: Looks | None = None
        """How the last feed that was checked looked."""

    def arguments(self, feed: Mapping[str, Any], *, checked: bool) -> tuple[Tensor | None, ...]:
        """A tensor for each input of the program, in order; None for those that nobody needs."""
        if checked:
            looks = _looks(feed)
            if looks is None or looks != self._good:
                self._check({name: self._tensor(name, value) for name, value in feed.items()})
                self._good = looks
        found = [self._tensor(name, feed[name]) if name in feed else None for name in self._inputs]
        if not self._on_host:
            found = [None if v is None else v.to(self._device, non_blocking=True) for v in found]
        return tuple(found)

    def _tensor(self, name: str, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            # What computed it is no part of the program, and must not be trained with it.
            return value.detach() if value.requires_grad else value
        if isinstance(value, np.ndarray):
            # Arrays from a file are read-only, and torch would warn of writes that never come.
            return torch.from_numpy(value if value.flags.writeable else value.copy())
        node = self._inputs.get(name)
        return torch.as_tensor(value, dtype=node.meta["val"].dtype if node is not None else None)

    def _check(self, found: Mapping[str, Tensor]) -> None:
        for name in found:
            if name not in self._inputs:
                message = f"feed has {name!r}, which is no input of the program"
                raise ProgramError(unknown(message, name, self._inputs))
        if missing := [name for name in self._needed if name not in found]:
            raise ProgramError(
                f"feed lacks {', '.join(map(repr, missing))}, which the fetched variables depend "
                f"on, or what the program counts in buffers; feed a dict with {self._needed}, or "
                "run program.clone(for_test=True), which counts nothing."
            )
        for name, tensor in found.items():
            _check_one(name, tensor, self._inputs[name])
        self._program.shapes.check(found)


def _looks(feed: Mapping[str, Any]) -> Looks | None:
    """What the check goes by; None for values, such as lists, whose looks must be found out."""
    try:
        return [(name, type(value), value.shape, value.dtype) for name, value in feed.items()]
    except AttributeError:
        return None


def _check_one(name: str, tensor: Tensor, node: fx.Node) -> None:
    shape, dtype = node.meta["shape"], node.meta["val"].dtype
    if tensor.dtype != dtype:
        raise ProgramError(
            f"feed[{name!r}] is {tensor.dtype}, but static.data({name!r}) was declared as {dtype}; "
            f"convert it, with numpy: .astype({str(dtype).removeprefix('torch.')!r})."
        )
    loose = not node.meta.get("binding", True)
    fits = len(shape) == tensor.dim() and all(
        loose or size in FREE or size == real
        for size, real in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        raise ProgramError(
            f"feed[{name!r}] has the shape {list(tensor.shape)}, but static.data({name!r}) was "
            f"declared as {list(shape)}; None stands for any size."
        )

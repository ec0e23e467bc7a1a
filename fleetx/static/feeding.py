"""What is fed to a program: checked, and brought to the device."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from fleetx.plan.option import unknown
from fleetx.static.error import ProgramError
from fleetx.static.program import Program
from fleetx.static.shapes import FREE


def fed(
    program: Program,
    feed: Mapping[str, Any],
    needed: Mapping[str, fx.Node],
    *,
    device: torch.device,
    checked: bool = True,
) -> tuple[Tensor | None, ...]:
    """A tensor for each input of the program, in order; None for those that are not needed."""
    found = {name: _tensor(name, value, program) for name, value in feed.items()}
    if checked:
        _check(program, found, needed)
    moved = {name: tensor.to(device, non_blocking=True) for name, tensor in found.items()}
    return tuple(moved.get(name) for name in program.inputs())


def _tensor(name: str, value: Any, program: Program) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        # Arrays from a file are read-only, and torch would warn of writes that never come.
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    node = program.inputs().get(name)
    dtype = node.meta["val"].dtype if node is not None else None
    return torch.as_tensor(value, dtype=dtype)


def _check(program: Program, found: Mapping[str, Tensor], needed: Mapping[str, fx.Node]) -> None:
    known = program.inputs()
    for name in found:
        if name not in known:
            raise ProgramError(unknown(f"feed has {name!r}, no input of the program", name, known))
    if missing := [name for name in needed if name not in found]:
        raise ProgramError(
            f"feed lacks {', '.join(map(repr, missing))}, which the fetched variables depend on; "
            f"feed a dict with {sorted(needed)}."
        )
    for name, tensor in found.items():
        _check_one(name, tensor, known[name])
    program.shapes.check(found)


def _check_one(name: str, tensor: Tensor, node: fx.Node) -> None:
    shape, dtype = node.meta["shape"], node.meta["val"].dtype
    if tensor.dtype != dtype:
        raise ProgramError(
            f"feed[{name!r}] is {tensor.dtype}, but static.data({name!r}) was declared as {dtype}; "
            f"convert it, with numpy: .astype({str(dtype).removeprefix('torch.')!r})."
        )
    fits = len(shape) == tensor.dim() and all(
        size in FREE or size == real for size, real in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        raise ProgramError(
            f"feed[{name!r}] has the shape {list(tensor.shape)}, but static.data({name!r}) was "
            f"declared as {list(shape)}; None stands for any size."
        )

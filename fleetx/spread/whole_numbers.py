"""Numbers that scripts take out of tensors which are spread over workers: ``p.grad.norm().item()``.

torch gives each worker what comes of its own part, without a word. Here the workers that share a
tensor meet, and all of them get the number of the whole.
"""

import contextlib
import sys
from pathlib import Path
from types import FrameType

import torch
from torch.distributed.tensor import DTensor

from fleetx.roles.session import started, world
from fleetx.torch_internals import answer_numbers

CALL = "item(), float() or a condition of a tensor that is spread over workers"

_BETWEEN = (
    *(str(Path(torch.__file__).parent), str(Path(__file__).parents[1])),
    contextlib.__file__,
)
"""Code that no user wrote."""


def give_whole_numbers() -> None:
    """From now on, in this process."""
    answer_numbers(_number)


def _number(spread: DTensor) -> int | float | bool | complex:
    if all(placement.is_replicate() for placement in spread.placements):
        return spread.to_local().item()
    meet(spread, CALL)
    with torch.no_grad():
        return spread.full_tensor().item()


def meet(spread: DTensor, call: str) -> None:
    """Wait for those that share a tensor, with a limit, until they ask for the same.

    A worker that exchanges alone would do so with whatever the others exchange next; and two that
    ask for numbers of different tensors would get one made of both.
    """
    if started() and (barrier := world("item").barrier) is not None:
        kind = f"of shape {list(spread.shape)} at {_line()}"
        barrier.await_some(call, spread.device_mesh.mesh.flatten().tolist(), kind)


def _line() -> str:
    """Where a script asks; of paths the last part, for machines may keep it in other places."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else "a hook"

"""Numbers that scripts take out of tensors which are spread over workers: ``p.grad.norm().item()``.

torch gives each worker what comes of its own part, without a word. Here the workers that share a
tensor meet, and all of them get the number of the whole.
"""

from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from fleetx.roles.session import started, world
from fleetx.spread.script_lines import script_line
from fleetx.torch_internals import answer_numbers

CALL = "item(), float() or a condition of a tensor that is spread over workers"


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
        file, line = script_line()  # of a path the last part: machines may keep it elsewhere
        kind = f"of shape {list(spread.shape)} at {Path(file).name}:{line}"
        barrier.await_some(call, spread.device_mesh.mesh.flatten().tolist(), kind)

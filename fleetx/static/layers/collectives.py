"""Exchange between workers as an operator of a program."""

import torch
import torch.distributed as dist
from torch import Tensor

from fleetx import roles
from fleetx.record.recorder import emit
from fleetx.record.variable import Variable, as_variable

_KINDS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "mean": dist.ReduceOp.SUM,
}


def all_reduce(x: Tensor, op: str = "sum") -> Variable:
    """The sum, largest, smallest or mean value of all workers; every worker must run it."""
    if op not in _KINDS:
        raise ValueError(f"static.all_reduce() knows {', '.join(_KINDS)}, got {op!r}")
    x = as_variable(x, "static.all_reduce()")
    fake = torch.empty_like(x.fake)
    made: Variable = emit(x.program, "call_function", reduced, (x, op), {}, found=fake)
    return made


@torch.no_grad()
def reduced(tensor: Tensor, op: str) -> Tensor:
    """What the operator does when it runs."""
    tensor = tensor.detach().clone()
    if not roles.started() or roles.worker_num() == 1:
        return tensor
    dist.all_reduce(tensor, op=_KINDS[op])
    return tensor / roles.worker_num() if op == "mean" else tensor

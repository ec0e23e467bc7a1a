"""``paddle.fluid.layers.collective``: exchange between workers as operators of a program."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fleetx import roles
from fleetx.compat.recorded import fake, operator, rebind
from fleetx.record.variable import Variable

_KINDS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "prod": dist.ReduceOp.PRODUCT,
}


def _several() -> bool:
    return roles.started() and roles.worker_num() > 1


@torch.no_grad()
def reduced(x: Tensor, kind: str) -> Tensor:
    """The sum, largest, smallest or product of all workers' numbers."""
    found = x.detach().clone()
    if _several():
        dist.all_reduce(found, op=_KINDS[kind])
    return found


@torch.no_grad()
def sent(x: Tensor, root: int) -> Tensor:
    """The numbers of one worker."""
    found = x.detach().clone()
    if _several():
        dist.broadcast(found, src=root)
    return found


@torch.no_grad()
def gathered(x: Tensor, nranks: int) -> Tensor:
    """The numbers of all workers, one behind the other."""
    if not _several():
        return x.detach().repeat(nranks, *[1] * (x.dim() - 1))
    parts = [torch.empty_like(x) for _ in range(nranks)]
    dist.all_gather(parts, x.detach().contiguous())
    return torch.cat(parts)


@torch.no_grad()
def scattered(x: Tensor, nranks: int) -> Tensor:
    """This worker's part of the sum of all workers' numbers."""
    whole = reduced(x, "sum")
    return whole.chunk(nranks)[roles.worker_index() if _several() else 0].clone()


def _done(x: Any, out: Any, found: Any) -> Any:
    return found if out is None else rebind(out, found)


def _like(x: Any, by: Any = 1) -> Any:
    if not isinstance(x, Variable):
        return None
    sizes = list(x.fake.shape)
    sizes[0] = sizes[0] * by if by >= 1 else sizes[0] // round(1 / by)
    return fake(sizes, x.dtype)


def _kind(reduce_type: str) -> str:
    if reduce_type not in _KINDS:
        raise TypeError(f"reduce_type={reduce_type!r} is none of {', '.join(_KINDS)}.")
    return reduce_type


def _allreduce(x: Any, out: Any = None, reduce_type: str = "sum", sync_mode: bool = False) -> Any:
    """The sum, largest, smallest or product of all workers' numbers."""
    kind = _kind(reduce_type)
    return _done(x, out, _run(x, reduced, kind))


def _c_allreduce(
    x: Any,
    out: Any = None,
    reduce_type: str = "sum",
    ring_id: int = 0,
    use_calc_stream: bool = False,
) -> Any:
    """The same."""
    kind = _kind(reduce_type)
    return _done(x, out, _run(x, reduced, kind))


def _run(x: Any, func: Any, *args: Any, by: Any = 1) -> Any:
    if not isinstance(x, Variable):
        return func(x, *args)
    return operator(func, x, *args, like=_like(x, by))


def _broadcast(x: Any, root: int, sync_mode: bool = False) -> Any:
    """The numbers of one worker, for whoever holds x."""
    return rebind(x, _run(x, sent, int(root)))


def _c_broadcast(x: Any, root: int = 0, ring_id: int = 0, use_calc_stream: bool = False) -> Any:
    """The same."""
    return rebind(x, _run(x, sent, int(root)))


def _c_allgather(x: Any, nranks: int, ring_id: int = 0, use_calc_stream: bool = False) -> Any:
    """The numbers of all workers, one behind the other."""
    return _run(x, gathered, int(nranks), by=int(nranks))


def _c_reducescatter(x: Any, nranks: int, ring_id: int = 0, use_calc_stream: bool = False) -> Any:
    """This worker's part of the sum of all workers' numbers."""
    return _run(x, scattered, int(nranks), by=1 / int(nranks))


def _c_sync_calc_stream(x: Any) -> Any:
    """Nothing: operators of a program run in their order."""
    return x


def _c_sync_comm_stream(x: Any, ring_id: int = 0) -> Any:
    """Nothing: operators of a program run in their order."""
    return x

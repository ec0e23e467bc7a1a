"""``paddle.distributed.collective``: exchange between workers, by hand."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fleetx import roles, static
from fleetx.compat import exchanges
from fleetx.compat.groups import Group, chosen, get_group, new_group
from fleetx.compat.plain import plain
from fleetx.compat.tensors import wrap
from fleetx.record.variable import Variable

__all__ = [
    "Group",
    "ReduceOp",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "get_group",
    "irecv",
    "isend",
    "new_group",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "split",
    "wait",
]


class ReduceOp:
    """How numbers of several workers become one."""

    SUM, MAX, MIN, PROD, AVG = 0, 1, 2, 3, 4


_OPS: dict[int, Any] = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.MAX: dist.ReduceOp.MAX,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.PROD: dist.ReduceOp.PRODUCT,
    ReduceOp.AVG: dist.ReduceOp.SUM,
}
_WORDS = {ReduceOp.SUM: "sum", ReduceOp.MAX: "max", ReduceOp.MIN: "min", ReduceOp.AVG: "mean"}


class _Done:
    """What an exchange returns that has ended already."""

    def wait(self) -> bool:
        """It is over."""
        return True

    def is_completed(self) -> bool:
        """It is over."""
        return True


def _plain(tensor: Tensor) -> Tensor:
    found: Tensor = plain(tensor).detach()
    return found.contiguous()


def _into(tensor: Tensor, exchange: Callable[[Tensor], Any]) -> _Done:
    """Exchange a copy, and keep what came out in the tensor."""
    moved = _plain(tensor)
    exchange(moved)
    with torch.no_grad():
        tensor.copy_(moved)
    return _Done()


def all_reduce(
    tensor: Tensor,
    op: int = ReduceOp.SUM,
    group: Any = None,
    use_calc_stream: bool = True,
    sync_op: bool = True,
) -> Any:
    """Reduce a tensor over all workers, in place; in a program, a variable with the result."""
    if isinstance(tensor, Variable):
        if op not in _WORDS:
            raise ValueError("all_reduce() of a variable knows SUM, MAX, MIN and AVG")
        return static.all_reduce(tensor, _WORDS[op])
    among = chosen(group)
    if not among.is_member():
        return _Done()
    return _into(tensor, lambda moved: _reduced(moved, op, among))


def _reduced(moved: Tensor, op: int, among: Any) -> None:
    """Reduce in place; gloo has no mean of its own."""
    dist.all_reduce(moved, op=_OPS[op], group=among.process_group)
    if op == ReduceOp.AVG:
        moved.div_(among.nranks)


def broadcast(
    tensor: Tensor,
    src: int,
    group: Any = None,
    use_calc_stream: bool = True,
    sync_op: bool = True,
) -> Any:
    """Let all workers have the tensor of one, in place."""
    among = chosen(group)
    if not among.is_member():
        return _Done()
    return _into(tensor, lambda moved: dist.broadcast(moved, src, group=among.process_group))


def reduce(  # noqa: PLR0917 (the order of Paddle)
    tensor: Tensor,
    dst: int,
    op: int = ReduceOp.SUM,
    group: Any = None,
    use_calc_stream: bool = True,
    sync_op: bool = True,
) -> Any:
    """Reduce a tensor over all workers; one of them has the result."""
    among = chosen(group)
    if not among.is_member():
        return _Done()
    moved = _plain(tensor).clone()
    _reduced(moved, op, among)
    if roles.worker_index() == dst:
        with torch.no_grad():
            tensor.copy_(moved)
    return _Done()


def all_gather(
    tensor_list: list[Any],
    tensor: Tensor,
    group: Any = None,
    use_calc_stream: bool = True,
    sync_op: bool = True,
) -> Any:
    """Fill a list with the tensors of all workers."""
    among = chosen(group)
    moved = _plain(tensor)
    parts = [moved.clone()]
    if among.is_member():
        parts = [torch.empty_like(moved) for _ in among.ranks]
        dist.all_gather(parts, moved, group=among.process_group)
    tensor_list[:] = [wrap(part) for part in parts]
    return _Done()


def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    """Fill a list with plain objects of all workers."""
    chosen(group)
    object_list[:] = roles.util.all_gather(obj)


def broadcast_object_list(object_list: list[Any], src: int, group: Any = None) -> None:
    """Let all workers have the plain objects of one."""
    chosen(group)
    object_list[:] = roles.util.all_gather(list(object_list))[src]


def scatter(  # noqa: PLR0917 (the order of Paddle)
    tensor: Tensor,
    tensor_list: list[Tensor] | None = None,
    src: int = 0,
    group: Any = None,
    use_calc_stream: bool = True,
    sync_op: bool = True,
) -> Any:
    """Give each worker one tensor of a list that one of them has, in place."""
    among = chosen(group)
    if not among.is_member():
        with torch.no_grad():
            tensor.copy_((tensor_list or [tensor])[0])
        return _Done()
    listed = [_plain(t) for t in tensor_list or ()] if roles.worker_index() == src else None
    return _into(tensor, lambda m: dist.scatter(m, listed, src, group=among.process_group))


def reduce_scatter(
    tensor: Tensor,
    tensor_list: list[Tensor],
    op: int = ReduceOp.SUM,
    group: Any = None,
    sync_op: bool = True,
) -> Any:
    """Reduce a list over all workers; each has the entry of its place."""
    among = chosen(group)
    moved = torch.stack([_plain(t) for t in tensor_list])
    if among.is_member():
        _reduced(moved, op, among)
    with torch.no_grad():
        tensor.copy_(moved[max(among.rank, 0)])
    return _Done()


def alltoall(
    in_tensor_list: list[Tensor],
    out_tensor_list: list[Any],
    group: Any = None,
    use_calc_stream: bool = True,
    sync_op: bool = True,
) -> Any:
    """Send the n-th tensor to the n-th worker, and fill a list with what came."""
    among = chosen(group)
    moved = torch.stack([_plain(t) for t in in_tensor_list])
    rows = [moved]
    if among.is_member():
        rows = [torch.empty_like(moved) for _ in among.ranks]
        dist.all_gather(rows, moved, group=among.process_group)
    out_tensor_list[:] = [wrap(row[max(among.rank, 0)].clone()) for row in rows]
    return _Done()


def send(tensor: Tensor, dst: int = 0, group: Any = None, *_: Any, **__: Any) -> Any:
    """Send a tensor to a worker."""
    dist.send(_plain(tensor), dst, group=chosen(group).process_group)
    return _Done()


def recv(tensor: Tensor, src: int = 0, group: Any = None, *_: Any, **__: Any) -> Any:
    """Get a tensor of a worker, in place."""
    among = chosen(group)
    return _into(tensor, lambda moved: dist.recv(moved, src, group=among.process_group))


isend, irecv = send, recv


def barrier(group: Any = None) -> None:
    """Wait until every worker is here."""
    chosen(group)
    roles.barrier_worker()


def wait(tensor: Tensor, group: Any = None, use_calc_stream: bool = True) -> None:
    """Nothing to do: an exchange has ended when its call returns."""


def _in_a_part(x: Tensor, name: str) -> Tensor:
    """Refuse what programs of several workers would compute by parts that only a script knows."""
    if isinstance(x, Variable) and roles.started() and roles.worker_num() > 1:
        raise NotImplementedError(
            f"paddle.distributed.collective.{name} with {roles.worker_num()} workers in a program "
            "cuts layers by hand, and layers of programs are whole here on every worker; write "
            "them whole (paddle.distributed.split, fleet.meta_parallel), or train eagerly."
        )
    return x


def _c_identity(tensor: Tensor, group: Any = None, skip_c_identity_dynamic: bool = False) -> Any:
    return exchanges.identity(_in_a_part(tensor, "_c_identity"), chosen(group))


def _c_concat(tensor: Tensor, group: Any = None) -> Any:
    return exchanges.concat(_in_a_part(tensor, "_c_concat"), chosen(group))


_concat = _c_concat


def _c_split(tensor: Tensor, group: Any = None) -> Any:
    return exchanges.split(_in_a_part(tensor, "_c_split"), chosen(group))


def _mp_allreduce(  # noqa: PLR0917 (the order of Paddle)
    tensor: Tensor,
    op: int = ReduceOp.SUM,
    group: Any = None,
    use_calc_stream: bool = True,
    use_model_parallel: bool = True,
    skip_c_identity_dynamic: bool = False,
) -> Any:
    if op != ReduceOp.SUM:
        raise ValueError("_mp_allreduce() adds; use all_reduce() for other operations.")
    return exchanges.summed(_in_a_part(tensor, "_mp_allreduce"), chosen(group))


def _c_lookup_table(
    table: Tensor,
    index: Tensor,
    start_index: int = 0,
    vocab_size: int = -1,
    name: str | None = None,
) -> Any:
    _in_a_part(index, "_c_lookup_table")
    return exchanges.lookup(table, index, start_index, chosen(None))


def _c_softmax_with_cross_entropy(
    logits: Tensor,
    label: Tensor,
    group: Any = None,
    return_softmax: bool = False,
    ignore_index: int = -100,
) -> Any:
    _in_a_part(logits, "_c_softmax_with_cross_entropy")
    loss, softmax = exchanges.softmax_with_cross_entropy(logits, label, chosen(group), ignore_index)
    return (loss, softmax) if return_softmax else loss


def split(  # noqa: PLR0917 (the order of Paddle)
    x: Tensor,
    size: tuple[int, int],
    operation: str,
    axis: int = 0,
    num_partitions: int = 1,
    gather_out: bool = True,
    weight_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> Any:
    """A layer cut over workers; in a program, it is whole on every one, with the same results."""
    from fleetx.compat.cut_layers import split_layer

    return split_layer(
        x,
        size,
        operation,
        axis=axis,
        partitions=num_partitions,
        gather_out=gather_out,
        weight_attr=weight_attr,
        bias_attr=bias_attr,
    )

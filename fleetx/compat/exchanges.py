"""Exchange between workers that gradients flow through, for layers that are cut over them."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from typing_extensions import override

from fleetx.compat.groups import Group
from fleetx.compat.plain import plain
from fleetx.record.variable import Variable


def _reduced(tensor: Tensor, group: Group) -> Tensor:
    made = tensor.detach().clone().contiguous()
    dist.all_reduce(made, group=group.process_group)
    return made


def _gathered(tensor: Tensor, group: Group) -> Tensor:
    parts = [torch.empty_like(tensor) for _ in group.ranks]
    dist.all_gather(parts, tensor.detach().contiguous(), group=group.process_group)
    return torch.cat(parts, dim=-1)


def _own(tensor: Tensor, group: Group) -> Tensor:
    return tensor.chunk(group.nranks, dim=-1)[group.rank].contiguous()


class _Identity(torch.autograd.Function):
    """The same forward; gradients of all workers are added."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @override
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _reduced(grads[0], ctx.group), None


class _Sum(torch.autograd.Function):
    """The sum over workers forward; the gradient passes as it is."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return _reduced(x, group)

    @staticmethod
    @override
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None


class _Concat(torch.autograd.Function):
    """The parts of all workers side by side; each gets the gradient of its own."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _gathered(x, group)

    @staticmethod
    @override
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _own(grads[0], ctx.group), None


class _Split(torch.autograd.Function):
    """This worker's part of the last axis; gradients are put together again."""

    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _own(x, group)

    @staticmethod
    @override
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _gathered(grads[0], ctx.group), None


def _applied(function: Any, name: str, x: Tensor, group: Group) -> Tensor:
    if group.nranks == 1:
        return x
    if isinstance(x, Variable):
        raise NotImplementedError(
            f"paddle.distributed.collective.{name} with {group.nranks} workers in a program cuts "
            "layers by hand, which programs do not know here; write the layers whole "
            "(paddle.distributed.split), or train eagerly."
        )
    made: Tensor = function.apply(plain(x), group)
    return made


def identity(x: Tensor, group: Group) -> Tensor:
    """The same; gradients of the group are added."""
    return _applied(_Identity, "_c_identity", x, group)


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum over the group; the gradient passes as it is."""
    return _applied(_Sum, "_mp_allreduce", x, group)


def concat(x: Tensor, group: Group) -> Tensor:
    """The parts of the group side by side along the last axis."""
    return _applied(_Concat, "_c_concat", x, group)


def split(x: Tensor, group: Group) -> Tensor:
    """This worker's part of the last axis."""
    return _applied(_Split, "_c_split", x, group)


def lookup(table: Tensor, index: Tensor, start: int, group: Group) -> Tensor:
    """Rows of a table of which each worker has a part; zeros for rows of others."""
    table, local = plain(table), plain(index).long() - start
    outside = (local < 0) | (local >= table.size(0))
    rows = torch.nn.functional.embedding(torch.masked_fill(local, outside, 0), table)
    return torch.masked_fill(rows, outside.unsqueeze(-1), 0.0)


def softmax_with_cross_entropy(
    logits: Tensor, label: Tensor, group: Group, ignore_index: int = -100
) -> tuple[Tensor, Tensor]:
    """The loss of each sample, shaped ``[…, 1]``, and this worker's part of the softmax."""
    logits, label = plain(logits), plain(label).long()
    label = label.squeeze(-1) if label.dim() == logits.dim() else label
    top = torch.amax(logits.detach(), dim=-1, keepdim=True)
    if group.nranks > 1:
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group.process_group)
    powers = torch.exp(logits - top)
    total = summed(torch.sum(powers, dim=-1, keepdim=True), group)
    width = logits.size(-1)
    local = label - group.rank * width
    outside = (local < 0) | (local >= width)
    at = torch.masked_fill(local, outside, 0).unsqueeze(-1)
    picked = torch.masked_fill(torch.gather(logits - top, -1, at), outside.unsqueeze(-1), 0.0)
    loss = torch.log(total) - summed(picked, group)
    ignored = (label == ignore_index).unsqueeze(-1)
    return torch.masked_fill(loss, ignored, 0.0), powers / total

"""How FSDP's units travel where gloo carries them, which else sends gradients twice."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fleetx.comm import collective_names, pairwise
from fleetx.comm.held_gradients import sharded


def at_full_speed(model: nn.Module) -> None:
    """Let a model that is laid out exchange its units in messages between two ranks."""
    for unit in sharded(model):
        unit.set_custom_all_gather(_Gather())
        unit.set_custom_reduce_scatter(_Scatter())


class _Buffers:
    """Where FSDP puts what it sends and receives."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)


class _Gather(_Buffers):
    """Nothing runs beside it on a CPU, so FSDP waits for it here."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        pairwise.all_gather(output_tensor, input_tensor, group).wait()


class _Scatter(_Buffers):
    """The sum or the mean; other reductions are gloo's own."""

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            collective_names.reduce_scatter_single(output_tensor, input_tensor, op=op, group=group)
            return
        pairwise.reduce_scatter(output_tensor, input_tensor, group)
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(dist.get_world_size(group))

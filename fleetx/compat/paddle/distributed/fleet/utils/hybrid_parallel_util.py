"""``paddle.distributed.fleet.utils.hybrid_parallel_util``."""

from typing import Any

import torch.distributed as dist

from fleetx.compat.groups import everybody
from fleetx.compat.hybrid import HybridCommunicateGroup
from fleetx.compat.paddle.distributed.parallel import same_start
from fleetx.compat.plain import plain


def fused_allreduce_gradients(
    parameter_list: Any, hcg: HybridCommunicateGroup | None = None, *_: Any, **__: Any
) -> None:
    """Let gradients be the mean over the workers along the axis of data."""
    group = everybody() if hcg is None else hcg.get_data_parallel_group()
    if group.nranks == 1:
        return
    for parameter in parameter_list:
        if parameter.grad is not None:
            moved = plain(parameter.grad).detach().contiguous()
            dist.all_reduce(moved, group=group.process_group)
            parameter.grad.copy_(moved / group.nranks)


def broadcast_dp_parameters(model: Any, hcg: HybridCommunicateGroup) -> None:
    """Let workers along the axis of data begin alike."""
    same_start(model, hcg.get_data_parallel_group())


def broadcast_mp_parameters(model: Any, hcg: HybridCommunicateGroup) -> None:
    """Let workers that cut layers begin alike, but for their parts."""
    same_start(model, hcg.get_model_parallel_group())


def broadcast_sharding_parameters(model: Any, hcg: HybridCommunicateGroup) -> None:
    """Let workers that share parameters out begin alike."""
    same_start(model, hcg.get_sharding_parallel_group())

"""Exchanges of Paddle 2.3 and later: pieces of one tensor, objects, one worker that collects."""

from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from fleetx import roles
from fleetx.compat.groups import chosen
from fleetx.compat.paddle.distributed.collective import _Done as Done
from fleetx.compat.paddle.distributed.collective import all_gather, all_gather_object
from fleetx.compat.plain import plain

__all__ = [
    "ParallelMode",
    "alltoall_single",
    "gather",
    "gloo_barrier",
    "gloo_init_parallel_env",
    "gloo_release",
    "scatter_object_list",
]


class ParallelMode(IntEnum):
    """How workers share a model."""

    DATA_PARALLEL = 0
    TENSOR_PARALLEL = 1
    PIPELINE_PARALLEL = 2
    SHARDING_PARALLEL = 3


def gather(
    tensor: Tensor,
    gather_list: list[Any] | None = None,
    dst: int = 0,
    group: Any = None,
    sync_op: bool = True,
) -> Done:
    """Fill the list of one worker with the tensors of all."""
    found: list[Any] = []
    all_gather(found, tensor, group)
    if gather_list is not None and roles.worker_index() == dst:
        gather_list[:] = found
    return Done()


def scatter_object_list(
    out_object_list: list[Any],
    in_object_list: list[Any] | None = None,
    src: int = 0,
    group: Any = None,
) -> None:
    """Give each worker one object of a list that one of them has."""
    among = chosen(group)
    lists: list[Any] = []
    all_gather_object(lists, in_object_list, group)
    given = lists[among.ranks.index(src)] if among.is_member() else in_object_list
    out_object_list[:] = [(given or [None])[max(among.rank, 0)]]


def alltoall_single(  # noqa: PLR0917 (the order of Paddle)
    in_tensor: Tensor,
    out_tensor: Tensor,
    in_split_sizes: list[int] | None = None,
    out_split_sizes: list[int] | None = None,
    group: Any = None,
    sync_op: bool = True,
) -> Done:
    """Send the n-th piece of a tensor to the n-th worker, and fill another with what came."""
    among = chosen(group)
    count = max(among.nranks, 1)
    whole: Tensor = plain(in_tensor).detach()
    pieces = torch.split(whole, in_split_sizes or len(whole) // count)
    # Pieces may differ in size, so they travel as objects would.
    rows: list[Any] = []
    all_gather_object(rows, [piece.cpu() for piece in pieces], group)
    came = torch.cat([row[max(among.rank, 0)] for row in rows])
    if list(came.shape) != list(out_tensor.shape):
        raise ValueError(
            f"alltoall_single() brought {list(came.shape)}, and out_tensor has "
            f"{list(out_tensor.shape)}; let in_split_sizes and out_split_sizes agree."
        )
    with torch.no_grad():
        out_tensor.copy_(came)
    return Done()


def gloo_init_parallel_env(rank_id: int, rank_num: int, server_endpoint: str) -> None:
    """Nothing to do: workers meet when a job begins."""


def gloo_barrier() -> None:
    """Wait until every worker is here."""
    roles.barrier_worker()


def gloo_release() -> None:
    """Nothing to give back."""

"""Times of torch's collectives over gloo, against bytes, and the line through them."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.exchanges.worker import sent_and_received, together
from fleetx.comm import pairwise
from fleetx.comm.collective_names import all_gather_single, reduce_scatter_single

SIZES = (4, 4096, 65_536, 1_048_576, 8_388_608)
"""Bytes of the whole tensor that a collective is about."""


def timed(command: dict[str, Any]) -> dict[str, Any]:
    """Seconds of one collective: the median of the worst rank's is taken by whoever asks."""
    call = prepared(command["name"], command["bytes"])
    call()
    together()
    sent = sent_and_received()[0]
    times = []
    for _ in range(command["repeats"]):
        began = together()
        call()
        times.append(time.perf_counter() - began)
    together()
    return {"seconds": times, "sent": sent_and_received()[0] - sent}


def prepared(name: str, size: int) -> Callable[[], None]:
    """A collective on a tensor of about that many bytes, of which each rank has a whole part."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    part = torch.zeros(max(1, size // 4 // ranks))
    whole = torch.zeros(part.numel() * ranks)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce_scatter": lambda: reduce_scatter_single(part, whole),
        "all_gather": lambda: all_gather_single(whole, part),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "send": lambda: _passed_on(whole, rank),
        "fleetx_reduce_scatter": lambda: pairwise.reduce_scatter(part, whole, _world()),
        "fleetx_all_gather": lambda: pairwise.all_gather(whole, part, _world()).wait(),
    }
    return lambda: _nothing(calls[name]())


NAMES = (
    *("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send"),
    *("fleetx_reduce_scatter", "fleetx_all_gather"),
)
"""torch's own, and those of sharding and of the hierarchical all-reduce."""


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def _nothing(done: object) -> None:
    del done


def _passed_on(tensor: Tensor, rank: int) -> None:
    """From the first rank to the second; the others have nothing to do."""
    if rank == 0:
        dist.send(tensor, 1)
    elif rank == 1:
        dist.recv(tensor, 0)


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Seconds that a message costs, and seconds for each byte more.

    The first is what the smallest takes. The second goes through the largest, where it matters.
    """
    (small, least), (large, most) = min(points), max(points)
    slope = max(0.0, (most - least) / (large - small))
    return least, slope


def worst(answers: Sequence[dict[str, Any]]) -> float:
    """The median over repeats of what the slowest rank took."""
    return statistics.median(
        max(found) for found in zip(*(a["seconds"] for a in answers), strict=True)
    )

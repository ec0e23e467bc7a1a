"""``paddle.distributed.spawn``: workers out of a function of the script."""

import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import multiprocessing

import fleetx
from fleetx.compat.imports import ENTRY, install
from fleetx.compat.notes import note


def spawn(
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = -1,
    join: bool = True,
    daemon: bool = False,
    **options: Any,
) -> Any:
    """Run a function in several processes, each a worker."""
    listed = str(options.pop("gpus", options.pop("selected_gpus", "")) or "")
    count = nprocs if nprocs > 0 else _count(listed)
    for name in options:
        note(f"spawn({name}=...)", "it has nothing to set here.")
    start: Any = vars(multiprocessing)["start_processes"]
    # Workers read the script again before they can install the hook, with the path of this process.
    sys.path.append(str(ENTRY))
    try:
        started = start(
            _worker,
            args=(func, args, _endpoints(count)),
            nprocs=count,
            join=False,
            daemon=daemon,
            start_method="spawn",
        )
    finally:
        sys.path.remove(str(ENTRY))
    while join and not started.join():
        pass
    return started


def _count(listed: str) -> int:
    return len(listed.split(",")) if listed else max(torch.cuda.device_count(), 1)


def _endpoints(count: int) -> list[str]:
    """Addresses that are free now."""
    with ExitStack() as stack:
        holders = [stack.enter_context(socket.socket()) for _ in range(count)]
        for holder in holders:
            holder.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{holder.getsockname()[1]}" for holder in holders]


def _worker(
    rank: int, func: Callable[..., Any], args: tuple[Any, ...], endpoints: list[str]
) -> None:
    install()
    if len(endpoints) > 1:
        fleetx.init(fleetx.UserDefinedCollectiveRoleMaker(rank, endpoints))
    func(*args)

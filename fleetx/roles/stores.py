"""The store through which workers meet before they have a process group."""

import itertools
from datetime import timedelta
from typing import Protocol, cast

import torch
import torch.distributed as dist

from fleetx.roles.addresses import join_endpoint, split_endpoint
from fleetx.roles.role import Identity


class Store(Protocol):
    """The part of torch's stores that is used here; torch does not mark its classes exported."""

    def set(self, key: str, value: str, /) -> None:
        """Leave a message."""

    def multi_get(self, keys: list[str], /) -> list[bytes]:
        """Wait for all messages and read them."""

    def get(self, key: str, /) -> bytes:
        """Wait for one message and read it."""

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Wait for messages without reading them."""

    def add(self, key: str, amount: int, /) -> int:
        """Count, and return the count."""

    def compare_set(self, key: str, expected: str, value: str, /) -> bytes:
        """Leave a message in place of the expected one, "" for none; read what is there now."""

    def delete_key(self, key: str, /) -> bool:
        """Remove a message."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all messages are there."""


_starts = itertools.count()
"""How often this process began to meet the others; all of them count alike."""


def open_store(found: Identity, timeout: timedelta) -> Store:
    """Open the place that the identity names, with keys that no earlier start has used."""
    store = dist.PrefixStore(  # type: ignore[attr-defined]
        f"fleetx/start{next(_starts)}",
        _open(found, timeout),  # type: ignore[arg-type]
    )
    return cast(Store, store)


def _open(found: Identity, timeout: timedelta) -> Store:
    """Worker 0 or an elastic agent hosts the store."""
    if found.worker_num == 1:
        return cast(Store, dist.HashStore())  # type: ignore[attr-defined]
    if found.rendezvous == "env":
        opened = dist.rendezvous("env://", timeout=timeout)  # type: ignore[attr-defined]
        return cast(Store, next(iter(opened))[0])
    host, port = split_endpoint(found.rendezvous, where=f"rendezvous by {found.source}")
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host, port, is_master=found.index == 0, timeout=timeout, wait_for_workers=False
        )
    except dist.DistError as error:
        raise RuntimeError(
            f"worker {found.index} of {found.worker_num} ({found.source}) cannot meet the others "
            f"at {found.rendezvous}: {error}; worker 0 must run on that machine and the port must "
            "be free there (set MASTER_ADDR and MASTER_PORT to choose another place)"
        ) from error
    return cast(Store, store)


def host_store(host: str, timeout: timedelta) -> tuple[Store, str]:
    """Open a store on a free port of this machine; return it with its endpoint."""
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host, 0, is_master=True, timeout=timeout, wait_for_workers=False
    )
    return cast(Store, store), join_endpoint(host, store.port)


def visit_store(endpoint: str, timeout: timedelta) -> Store:
    """Connect to a store that another worker hosts."""
    host, port = split_endpoint(endpoint, where="store")
    store = dist.TCPStore(  # type: ignore[attr-defined]
        host, port, is_master=False, timeout=timeout, wait_for_workers=False
    )
    return cast(Store, store)


def make_group(store: Store, found: Identity, backend: str) -> None:
    """Make torch's default group of all workers."""
    device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in backend else None
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("fleetx/world", store),  # type: ignore[attr-defined,arg-type]
        rank=found.index,
        world_size=found.worker_num,
        device_id=device,
    )

"""The store through which workers meet before they have a process group."""

import itertools
import json
import os
import socket
from datetime import timedelta
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist

from fleetx.roles.addresses import join_endpoint, split_endpoint
from fleetx.roles.environment import Environment
from fleetx.roles.role import Identity

_PATIENCE = 300


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


def is_served(store: Store) -> bool:
    """Whether whoever keeps the store still does; torch itself prints a page where it does not."""
    inner: Any = store
    while hasattr(inner, "underlying_store"):
        inner = inner.underlying_store
    if not hasattr(inner, "port"):
        return True
    try:
        with socket.create_connection((inner.host, inner.port), timeout=1):
            return True
    except OSError:
        return False


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


def patience() -> timedelta:
    """How long a worker waits for the others to come: FLEETX_TIMEOUT seconds, 300 by default."""
    return timedelta(seconds=Environment(os.environ).number("FLEETX_TIMEOUT", _PATIENCE))


def _seconds() -> int:
    return int(patience().total_seconds())


def gather_through_store(store: Store, topic: str, found: Identity, fact: Any) -> list[Any]:
    """Return the facts of all workers, in their order; waits for the last of them."""
    keys = [f"{topic}/{index}" for index in range(found.worker_num)]
    store.set(keys[found.index], json.dumps(fact))
    try:
        return [json.loads(said) for said in store.multi_get(keys)]
    except dist.DistStoreError as error:
        raise RuntimeError(_who_is_missing(store, keys)) from error


def _who_is_missing(store: Store, keys: list[str]) -> str:
    missing = [str(index) for index, key in enumerate(keys) if not store.check([key])]
    return (
        f"fleet.init() waited {_seconds()} s, but of {len(keys)} workers these did not "
        f"come: {', '.join(missing)}; look at their logs, or set FLEETX_TIMEOUT (seconds) if they "
        "start slowly"
    )

"""The stores through which launchers and workers meet."""

import socket
import threading
import time
from datetime import timedelta

from torch.distributed import (  # type: ignore[attr-defined]  # public, but not marked so
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)

from fleetx.launch.addresses import resolve
from fleetx.launch.cluster import Job
from fleetx.launch.console import warn
from fleetx.launch.errors import LaunchError
from fleetx.launch.ports import listen

__all__ = ["PrefixStore", "Store", "TCPStore", "control_store", "worker_host", "worker_store"]

ANSWER = timedelta(seconds=30)
"""How long a call to a store may take before its keeper counts as lost."""
HANDSHAKE = 5.0
LOOPBACK = "127.0.0.1"


def serve(listener: socket.socket) -> TCPStore:
    """A store behind a socket that already listens."""
    port = listener.getsockname()[1]
    return TCPStore(
        LOOPBACK,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=ANSWER,
        master_listen_fd=listener.detach(),
    )


def worker_store(job: Job) -> TCPStore:
    """A fresh store for one attempt of the workers, on a port the kernel chooses."""
    return serve(listen("" if job.max_nodes > 1 else LOOPBACK, 0, job.master_flag))


def worker_host(job: Job) -> str:
    """Where the workers find that store: nobody outside can reach the one of a single machine."""
    return job.host if job.max_nodes > 1 else LOOPBACK


def control_store(job: Job, listener: socket.socket | None, timeout: float) -> Store:
    """The store of the launchers; a job of one machine needs no port for it."""
    if listener is not None:
        return serve(listener)
    if job.master is None:
        return HashStore()
    host, port = job.master
    _await_port(resolve(host, job.master_flag), job, timeout)
    return _connect(host, port, job.master_flag)


def _await_port(address: str, job: Job, timeout: float) -> None:
    assert job.master is not None
    host, port = job.master
    deadline = time.monotonic() + timeout
    told = False
    while True:
        try:
            left = max(0.1, deadline - time.monotonic())
            socket.create_connection((address, port), timeout=min(5.0, left)).close()
            return
        except OSError as error:
            why = error.strerror or "no answer"
        if time.monotonic() > deadline:
            raise LaunchError(
                f"nobody answered at {host}:{port} for {timeout:g} s ({why}), so the machines "
                f"cannot meet; start the launcher of {host}, or correct {job.master_flag}"
            )
        if not told:
            warn(f"waiting for the launcher at {host}:{port}")
            told = True
        time.sleep(0.3)


def _connect(host: str, port: int, flag: str) -> TCPStore:
    # A program that accepts but never answers would block the constructor for ever, whatever
    # its timeout; hence a thread that can be left behind.
    found: list[TCPStore] = []

    def connect() -> None:
        try:
            found.append(TCPStore(host, port, wait_for_workers=False, timeout=ANSWER))
        except Exception:
            return

    thread = threading.Thread(target=connect, name="connect", daemon=True)
    thread.start()
    thread.join(HANDSHAKE)
    if found:
        return found[0]
    raise LaunchError(
        f"{host}:{port} is in use by a program that is not fleetrun, so the machines cannot meet "
        f"there; choose another address with {flag}"
    )

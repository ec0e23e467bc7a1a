"""Free ports that stay ours from the moment they are chosen."""

import errno
import socket
from types import TracebackType
from typing import Self

from fleetx.launch.addresses import is_local, resolve
from fleetx.launch.cluster import Job
from fleetx.launch.errors import LaunchError


class Ports:
    """Bound sockets that nobody listens on.

    The kernel gives a bound port to no other job, while a worker that sets `SO_REUSEADDR`
    (TCPStore, asyncio, `socketserver` with `allow_reuse_address`) can still listen on it.
    So there is no moment between choosing and using in which another job could step in.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def free(self, host: str) -> int:
        """A port chosen by the kernel."""
        return self._hold(host, 0)

    def fixed(self, host: str, port: int, flag: str) -> int:
        """A port chosen by the user, checked to be free."""
        try:
            return self._hold(host, port)
        except OSError as error:
            raise LaunchError(busy(host, port, flag, error)) from None

    def _hold(self, host: str, port: int) -> int:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        holder = socket.socket(family, socket.SOCK_STREAM)
        self._held.append(holder)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((host, port))
        return int(holder.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for holder in self._held:
            holder.close()
        self._held.clear()


def listen(host: str, port: int, flag: str) -> socket.socket:
    """A listening socket for a store; "" listens on all addresses."""
    try:
        if host == "" and socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise LaunchError(busy(host or "this machine", port, flag, error)) from None


def claim(job: Job) -> socket.socket | None:
    """Opens the meeting point if it is on this machine, before anything slow happens.

    Two launchers on one machine may meet there as well, so for a job without fixed ranks a
    busy port is no error yet: whoever holds it may be the other launcher.
    """
    if job.master is None or job.node_rank not in (0, None):
        return None
    host, port = job.master
    if job.node_rank is None and not is_local(resolve(host, job.master_flag)):
        return None
    try:
        return listen("", port, job.master_flag)
    except LaunchError:
        if job.node_rank == 0:
            raise
        return None


def busy(host: str, port: int, flag: str, error: OSError) -> str:
    """The sentence for a port that cannot be had."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is already in use, so this job cannot have it; end the "
            f"program that holds it or choose another with {flag}"
        )
    return f"port {port} of {host} cannot be opened ({error.strerror}); choose another with {flag}"

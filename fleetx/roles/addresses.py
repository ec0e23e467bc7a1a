"""Endpoints as text, free ports, and the address under which other machines reach this one."""

import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path


def split_endpoint(endpoint: str, *, where: str) -> tuple[str, int]:
    """Split "host:port" (or "[ipv6]:port"); `where` names the culprit in the complaint."""
    if (found := host_and_port(endpoint)) is None:
        raise ValueError(
            f"{where}: {endpoint!r} is not an endpoint; write host:port with a port from 1 to "
            "65535, such as 10.0.0.1:6170"
        )
    return found


def host_and_port(endpoint: str) -> tuple[str, int] | None:
    """The two parts of an endpoint; None for a text that is none."""
    host, colon, port = endpoint.strip().rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_endpoint(host: str, port: int) -> str:
    """Write host and port as one word, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_endpoints(endpoints: Sequence[str], *, where: str) -> tuple[str, ...]:
    """Return the endpoints as a tuple; refuse malformed and repeated ones."""
    listed = tuple(endpoint.strip() for endpoint in endpoints)
    for endpoint in listed:
        split_endpoint(endpoint, where=where)
    repeated = sorted({endpoint for endpoint in listed if listed.count(endpoint) > 1})
    if repeated:
        raise ValueError(
            f"{where}: {', '.join(repeated)} is listed more than once; "
            "every process needs an endpoint of its own"
        )
    return listed


def hosts_of(endpoints: Sequence[str]) -> list[str]:
    """The host of each endpoint."""
    return [split_endpoint(endpoint, where="endpoint")[0] for endpoint in endpoints]


def open_port() -> socket.socket:
    """Bind a port that is free on this machine; it stays taken until the socket is closed."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.bind(("", 0))
    return holder


def port_of(holder: socket.socket) -> int:
    """The port that a socket of `open_port` holds."""
    port = holder.getsockname()[1]
    assert isinstance(port, int)
    return port


def host_address() -> str:
    """The address of this machine for other machines; 127.0.0.1 if it has no network."""
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = "127.0.0.1"
    # Many machines list their own name under a loopback address, which only they can reach.
    return towards("203.0.113.1", 9) if ipaddress.ip_address(named).is_loopback else named


def machine_name() -> str:
    """A name that differs between machines, and between containers of one machine."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()}/{boot.read_text().strip() if boot.exists() else ''}"


def towards(host: str, port: int) -> str:
    """The address under which this machine reaches a host, and hence is reached by it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # a datagram socket sends nothing here
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"

"""Hosts, ports and which of them are this machine."""

import contextlib
import ipaddress
import socket
from collections.abc import Mapping, Sequence

from fleetx.launch.errors import LaunchError
from fleetx.roles.addresses import host_and_port, towards


def split_list(text: str, flag: str) -> tuple[str, ...]:
    """Cuts a comma list and refuses holes and repetitions."""
    items = tuple(item.strip() for item in text.split(","))
    if "" in items:
        raise LaunchError(f"{flag} {text!r} has an empty entry; write it as a,b without gaps")
    twice = [item for index, item in enumerate(items) if item in items[:index]]
    if twice:
        raise LaunchError(f"{flag} names {twice[0]} twice, but each entry runs once; remove one")
    return items


def split_endpoint(text: str, flag: str) -> tuple[str, int]:
    """Cuts `host:port`; an IPv6 host stands in brackets."""
    if (found := host_and_port(text)) is None:
        raise LaunchError(f"{flag} {text!r} is not an address; write host:port, e.g. 10.0.0.1:6379")
    return found


def resolve(host: str, flag: str) -> str:
    """The numeric address of a host name."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        raise LaunchError(f"{flag} names {host!r}, which no name server knows; check it") from None


def is_local(address: str) -> bool:
    """True when this machine owns the numeric address: only then can a socket be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """True for an address, or the one name, that means every machine itself."""
    try:
        return ipaddress.ip_address(host.split("%", maxsplit=1)[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def find_own(
    hosts: Sequence[str], *, given: str | None, environ: Mapping[str, str], flag: str
) -> str:
    """Which of the job's hosts is this machine."""
    for name, value in (("--node_ip", given), ("POD_IP", environ.get("POD_IP"))):
        if value and value in hosts:
            return value
        if value and name == "--node_ip":
            raise LaunchError(
                f"--node_ip {value} is not in {flag} {','.join(hosts)}, so this machine has no "
                "place in the job; add it to the list or correct it"
            )
    own = [host for host in hosts if is_local(resolve(host, flag))]
    if len(own) == 1:
        return own[0]
    if own:
        raise LaunchError(
            f"{flag} names {' and '.join(own)}, which are all this machine; say which one this "
            f"launcher is with --node_ip {own[0]}"
        )
    raise LaunchError(
        f"{flag} {','.join(hosts)} holds no address of this machine ({_own_addresses()}); add it, "
        "or name this machine's entry with --node_ip"
    )


def _own_addresses() -> str:
    names = {towards("192.0.2.1", 9)}
    with contextlib.suppress(OSError):
        names |= {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)}
    return ", ".join(
        sorted(names, key=lambda name: ipaddress.ip_address(name.split("%")[0]).packed)
    )

"""What a job needs of the system: shared memory, ports, a clock, open files."""

import ctypes
import ipaddress
import resource
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fleetx.doctor.finding import Finding, broken, note, ok
from fleetx.roles.addresses import host_address

SHARED = Path("/dev/shm")
ENOUGH_SHARED = 1 << 30
"""Bytes; containers have 64 MB unless they are asked for more."""
ENOUGH_FILES = 4096
FIRST_PORT = 6170
"""Where workers of several machines listen from, unless another one is chosen."""
TIME_ERROR = 5
"""What adjtimex(2) answers when nobody keeps the clock right."""


def shared_memory(folder: Path = SHARED) -> Iterator[Finding]:
    """What readers pass batches through."""
    if not folder.is_dir():
        return
    free = shutil.disk_usage(folder).free
    said = f"{free / 2**30:.1f} GiB free in {folder}"
    if free < ENOUGH_SHARED:
        yield note(
            "shared memory",
            said,
            "readers with num_workers die of a bus error when it is full: start the container "
            "with --shm-size=8g or --ipc=host",
        )
        return
    yield ok("shared memory", said)


def ports() -> Iterator[Finding]:
    """Whether processes of this machine reach each other, by loopback and by its own address."""
    own = host_address()
    for host in dict.fromkeys(("127.0.0.1", own)):
        try:
            _greet(host)
        except OSError as error:
            yield broken(
                "ports",
                f"a program of this machine cannot be reached at {host} ({error})",
                "let a firewall pass connections of this machine to itself",
            )
            return
    if busy := [port for port in (FIRST_PORT - 1, FIRST_PORT) if not _is_free(port)]:
        yield note(
            "ports",
            f"{' and '.join(map(str, busy))} in use, where machines listed with --ips meet",
            "choose others with --started_port; jobs of one machine take free ones",
        )
        return
    yield ok("ports", f"processes reach each other; {FIRST_PORT - 1} and {FIRST_PORT} are free")


def _greet(host: str) -> None:
    """A byte through a socket, as workers send theirs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        address = server.getsockname()[:2]
        with socket.create_connection(address, timeout=10) as client:
            server.settimeout(10)
            accepted, _ = server.accept()
            with accepted:
                client.sendall(b"!")
                if accepted.recv(1) != b"!":
                    raise ConnectionError("the connection was closed")


def _is_free(port: int) -> bool:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("", port))
        except OSError:
            return False
    return True


def network() -> Iterator[Finding]:
    """Under which address other machines would find this one."""
    own = host_address()
    if ipaddress.ip_address(own).is_loopback:
        yield note(
            "network",
            "no route to other machines; jobs of one machine run",
            "for several machines, connect them and name the interface in GLOO_SOCKET_IFNAME",
        )
        return
    name = socket.gethostname()
    named = ""
    with suppress(OSError):
        named = socket.gethostbyname(name)
    if not named:
        yield note(
            "network",
            f"other machines find this one at {own}, but its own name {name} has no address",
            f"gloo looks it up in jobs of several machines: add '{own} {name}' to /etc/hosts",
        )
    elif ipaddress.ip_address(named).is_loopback:
        yield note(
            "network",
            f"other machines find this one at {own}, but its own name {name} means {named}",
            "gloo looks it up in jobs of several machines: change /etc/hosts, or name the "
            "interface in GLOO_SOCKET_IFNAME",
        )
    else:
        yield ok("network", f"other machines find this one at {own}")


class _Timex(ctypes.Structure):
    """The beginning of adjtimex's struct; with modes=0 it is read only."""

    _fields_ = (("modes", ctypes.c_uint), ("rest", ctypes.c_byte * 508))


def clock() -> Iterator[Finding]:
    """Whether somebody keeps the clock right: machines of a job date what they tell each other."""
    if sys.platform != "linux":
        return
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(_Timex()))
    if state < 0:
        yield note(
            "clock",
            "the system does not say whether it is kept right",
            "jobs of several machines need clocks less than a second apart (NTP)",
        )
    elif state == TIME_ERROR:
        yield note(
            "clock",
            "nobody keeps it right (no NTP)",
            "jobs of several machines need clocks less than a second apart: start chrony or "
            "systemd-timesyncd",
        )
    else:
        yield ok("clock", "kept right by NTP")


def file_limits() -> Iterator[Finding]:
    """How many files and sockets a process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "any number of" if soft == resource.RLIM_INFINITY else soft
    said = f"a process may have {most} open files"
    if soft != resource.RLIM_INFINITY and soft < ENOUGH_FILES:
        more = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
        yield note("file limits", said, f"many readers and workers need more: ulimit -n {more}")
        return
    yield ok("file limits", said)

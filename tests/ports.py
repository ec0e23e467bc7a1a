"""Ports for programs that are told on which to listen."""

import contextlib
import random
import socket
import time
from pathlib import Path

from fleetx.testing.limits import stretched

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Consecutive ports that are free, and that the kernel gives to nobody who asks for any.

    Other tests make hundreds of connections between our choice and the program's use of it.
    """
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32768
    chance = random.SystemRandom()  # two runs at once must not draw the same
    for _ in range(1000):
        first = chance.randrange(10000, end - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return list(range(first, first + count))
    raise AssertionError(f"no {count} free ports in a row below {end}")


def await_port(port: int) -> None:
    """Until somebody listens there."""
    deadline = time.monotonic() + stretched(60)
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        time.sleep(0.05)
    raise TimeoutError(f"nobody listens at {port}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True

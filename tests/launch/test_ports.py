"""Ports that stay ours."""

import socket

from fleetx.launch.ports import Ports


def test_held_ports_are_ours_but_usable() -> None:
    with Ports() as ports, Ports() as others:
        mine = {ports.free("127.0.0.1") for _ in range(20)}
        assert mine.isdisjoint(others.free("127.0.0.1") for _ in range(20))
        with socket.socket() as worker:
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            worker.bind(("127.0.0.1", mine.pop()))
            worker.listen()

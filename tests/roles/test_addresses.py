"""Endpoints are split, joined and checked; free ports are free."""

import ipaddress
import socket

import pytest

from fleetx.roles import addresses


@pytest.mark.parametrize(
    ("text", "parts"),
    [("a:1", ("a", 1)), (" 10.0.0.1:6170 ", ("10.0.0.1", 6170)), ("[::1]:80", ("::1", 80))],
)
def test_split_and_join(text: str, parts: tuple[str, int]) -> None:
    assert addresses.split_endpoint(text, where="test") == parts
    assert addresses.join_endpoint(*parts) == text.strip()


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:b", "a:0", "a:65536", "a:-1"])
def test_malformed(text: str) -> None:
    with pytest.raises(ValueError, match=r"LIST: .* is not an endpoint; write host:port"):
        addresses.check_endpoints([text], where="LIST")


def test_repeated() -> None:
    with pytest.raises(ValueError, match="LIST: b:2 is listed more than once"):
        addresses.check_endpoints(["a:1", "b:2", "b:2"], where="LIST")


def test_open_ports_are_distinct_and_held() -> None:
    with addresses.open_port() as first, addresses.open_port() as second:
        taken = addresses.port_of(first)
        assert taken != addresses.port_of(second)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", taken))


def test_this_machine_has_an_address_and_a_name() -> None:
    assert ipaddress.ip_address(addresses.host_address()).version in (4, 6)
    assert addresses.machine_name() == addresses.machine_name()


def test_without_a_network_the_address_is_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise OSError(name)

    class Unplugged(socket.socket):
        def connect(self, address: object) -> None:
            raise OSError("no route")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    monkeypatch.setattr(socket, "socket", Unplugged)
    assert addresses.host_address() == "127.0.0.1"

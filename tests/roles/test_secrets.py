"""Encryption that was asked for and cannot be had stops a job with what to set."""

from pathlib import Path

import pytest

from fleetx.roles.secrets import CERTIFICATE, KEY, client_tls, server_tls

FILES = Path(__file__).parents[1] / "ps"
GOOD = {CERTIFICATE: str(FILES / "certificate.pem"), KEY: str(FILES / "key.pem")}


def test_nobody_asked_for_it() -> None:
    assert server_tls({}) is None
    assert client_tls({}) is None
    assert client_tls({KEY: "key.pem"}) is None, "the key is the server's"


def test_files_that_serve() -> None:
    assert server_tls(GOOD) is not None
    assert client_tls(GOOD) is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [(CERTIFICATE, "/no/such/file"), (KEY, "/no/such/file"), (KEY, GOOD[CERTIFICATE])],
)
def test_a_server_names_files_that_do_not(name: str, value: str) -> None:
    with pytest.raises(
        ValueError, match=rf"{name}={value}.* of no use .* PEM format .* and its private key"
    ):
        server_tls(GOOD | {name: value})


@pytest.mark.parametrize("value", ["/no/such/file", GOOD[KEY]])
def test_so_does_a_worker(value: str) -> None:
    with pytest.raises(ValueError, match=rf"{CERTIFICATE}={value} is of no use"):
        client_tls({CERTIFICATE: value})


@pytest.mark.parametrize("name", [CERTIFICATE, KEY])
def test_a_server_needs_both(name: str) -> None:
    with pytest.raises(ValueError, match="servers encrypt when both are set"):
        server_tls({name: GOOD[name]})

"""Planning a collective job, without starting anything."""

import pytest

from fleetx.launch import collective
from fleetx.launch.arguments import Arguments
from fleetx.launch.cluster import Job
from fleetx.launch.errors import LaunchError
from fleetx.launch.ports import Ports

ROUTED = "127.0.0.7"
"""Stands for the address of this machine's network card; it can be bound to everywhere."""


def plan(*, master: str, node_ip: str | None = None) -> Job:
    arguments = Arguments(gpus="none", nnodes="2", master=f"{master}:6379", node_ip=node_ip)
    with Ports() as ports:
        return collective.plan(arguments, {}, ports)


@pytest.fixture
def own_name_is_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Debian, where /etc/hosts lists a machine's own name under 127.0.1.1."""
    names = {"node1": "127.0.1.1"}
    monkeypatch.setattr(collective, "resolve", lambda host, _flag: names.get(host, host))
    monkeypatch.setattr(collective, "is_loopback", lambda host: host in ("127.0.0.1", "localhost"))


@pytest.mark.usefixtures("own_name_is_loopback")
def test_others_are_told_the_address_that_leads_out(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"127.0.1.1": "127.0.0.1", "127.0.0.1": "127.0.0.1", collective.ELSEWHERE: ROUTED}
    monkeypatch.setattr(collective, "towards", lambda host, _port: routes[host])
    assert plan(master="node1").host == ROUTED
    assert plan(master="127.0.0.1").host == "127.0.0.1", "who types a loopback address means it"
    assert plan(master="node1", node_ip="127.0.0.3").host == "127.0.0.3"


@pytest.mark.usefixtures("own_name_is_loopback")
def test_a_machine_without_an_address_is_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "towards", lambda _host, _port: "127.0.0.1")
    with pytest.raises(LaunchError, match="give it with --node_ip"):
        plan(master="node1")

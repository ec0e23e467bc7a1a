"""How machines meet, without starting any process."""

import json
import time
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore, PrefixStore, TCPStore  # type: ignore[attr-defined]
from typing_extensions import override

from fleetx.launch import collective, parameter_server
from fleetx.launch.addresses import is_local
from fleetx.launch.agent import FleetAgent
from fleetx.launch.arguments import Arguments
from fleetx.launch.cluster import Job, World, collective_world
from fleetx.launch.errors import LaunchError
from fleetx.launch.job_board import SILENCE, JobBoard
from fleetx.launch.logs import WorkerLogs
from fleetx.launch.ports import Ports
from fleetx.launch.rendezvous import FixedMembers, Rendezvous
from fleetx.launch.saving import Saving
from fleetx.launch.stuck import Limits
from fleetx.launch.telling import Telling
from tests.ports import free_ports


class Place:
    """One machine's place in rounds that everyone else has joined already."""

    def __init__(
        self, store: HashStore, rank: int, size: int, patience: float | None = None
    ) -> None:
        self.store, self.rank, self.size, self.round = store, rank, size, 0
        self.patience = patience

    def join(self) -> tuple[int, int, PrefixStore]:
        self.round += 1
        return self.rank, self.size, PrefixStore(str(self.round), self.store)

    def waiting(self) -> bool:
        return False

    def part(self) -> None:
        pass

    def leave(self) -> None:
        pass


def member(store: HashStore, job: Job, rank: int, size: int = 2, timeout: float = 30) -> Rendezvous:
    return Rendezvous(job, JobBoard(store), Place(store, rank, size), timeout=timeout)


def tell(store: HashStore, rank: int, endpoints: list[str], view: dict[str, list[str]]) -> None:
    """What another machine says about itself in the first round."""
    PrefixStore("1", store).set(f"table/{rank}", json.dumps([endpoints, view]))


NO_IPV6 = pytest.mark.skipif(not is_local("::1"), reason="this machine has no IPv6")


@pytest.mark.parametrize("kind", ["ips", "servers", pytest.param("ipv6", marks=NO_IPV6)])
def test_workers_reach_the_store_of_one_machine_named_by_address(kind: str) -> None:
    one, two = free_ports(2)
    host = "[::1]" if kind == "ipv6" else "127.0.0.2"
    arguments = Arguments(servers=f"{host}:{one}", workers=f"{host}:{two}")
    if kind == "ips":
        arguments = Arguments(ips=host, gpus="none", nproc_per_node=2)
    plan = collective.plan if kind == "ips" else parameter_server.plan
    store = HashStore()
    with Ports() as ports:
        job = plan(arguments, {}, ports)
        members = FixedMembers(store, JobBoard(store), job, 10)
        rendezvous = Rendezvous(job, JobBoard(store), members, timeout=10)
        rendezvous.next_rendezvous()
        host, port = rendezvous.master
        TCPStore(host, port, wait_for_workers=False, timeout=timedelta(seconds=10)).set("a", "b")


def test_a_machine_that_says_nothing_is_named() -> None:
    job = Job(host="a", endpoints=("a:1",), world=None, max_nodes=2)
    rendezvous = member(HashStore(), job, rank=0, timeout=0.1)
    with pytest.raises(LaunchError, match=r"machine 1 came to the meeting and then said nothing"):
        rendezvous.next_rendezvous()


def test_attempts_are_counted_for_the_job_whoever_is_first() -> None:
    store = HashStore()
    job = Job(host="a", endpoints=("a:1",), world=None)
    old, new = (member(store, job, rank=0, size=1) for _ in range(2))
    old.next_rendezvous()
    assert old.attempt == 0
    new._members.join()  # the round of before was not its own
    new.next_rendezvous()
    assert new.attempt == 1


def listed(tables: list[list[str]], servers: tuple[str, ...] = ()) -> Job:
    world = collective_world(tables, 0)
    if servers:
        world = World(workers=world.workers, servers=servers, local=world.local, nnodes=2)
    return Job(host="a", endpoints=tuple(tables[0]), world=world, max_nodes=2)


def test_lists_that_differ_between_machines_are_refused() -> None:
    store = HashStore()
    other = listed([["a:1", "a:2"], ["b:1", "b:2"]])
    tell(store, 1, ["b:1", "b:2"], other.view())
    with pytest.raises(LaunchError, match=r"machine 1 counts the workers a:1,a:2,b:1,b:2 \(4\)"):
        member(store, listed([["a:1"], ["b:1"]]), rank=0).next_rendezvous()


def test_server_lists_that_differ_are_refused() -> None:
    store = HashStore()
    tell(store, 1, ["b:1"], listed([["a:1"], ["b:1"]], ("a:9", "b:9")).view())
    with pytest.raises(LaunchError, match=r"the servers a:9,b:9 \(2\) and this one a:9 \(1\)"):
        member(store, listed([["a:1"], ["b:1"]], ("a:9",)), rank=0).next_rendezvous()


def test_machines_that_agree_go_on() -> None:
    store = HashStore()
    job = listed([["a:1"], ["b:1"]])
    tell(store, 1, ["b:1"], job.view())
    rendezvous = member(store, job, rank=0)
    rendezvous.next_rendezvous()
    assert rendezvous.world == job.world


def test_a_machine_that_dies_while_an_elastic_job_meets_is_left_behind() -> None:
    """It has joined the first round, and is gone before it has said anything."""
    store = HashStore()
    job = Job(host="a", endpoints=("a:1",), world=None, node_rank=None, max_nodes=2)

    class Shrinking(Place):
        @override
        def join(self) -> tuple[int, int, PrefixStore]:
            self.size = 2 if self.round == 0 else 1
            return super().join()

    place = Shrinking(store, 0, 2, patience=0.1)
    rendezvous = Rendezvous(job, JobBoard(store), place, timeout=30)
    rendezvous.next_rendezvous()
    assert place.round == 2
    assert rendezvous.world is not None
    assert rendezvous.world.nnodes == 1
    assert rendezvous.attempt == 1, "no number of an attempt is used twice"


def test_machines_of_an_elastic_job_meet_again_without_a_silent_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    store = HashStore()
    job = Job(host="a", endpoints=("a:1",), world=None, node_rank=None, max_nodes=2)
    tell(store, 1, ["b:1"], {})
    rendezvous = member(store, job, rank=0)
    rendezvous.next_rendezvous()
    board = JobBoard(store)
    agent = FleetAgent(
        job,
        ["train.py"],
        rendezvous=rendezvous,
        board=board,
        logs=WorkerLogs(tmp_path, tmp_path),
        max_restart=0,
        limits=Limits(),
        saving=Saving(),
        telling=Telling(tmp_path, "train.py"),
        keeper=True,
    )
    agent._check_others()
    assert rendezvous.num_nodes_waiting() == 0
    clock[0] += SILENCE + 1
    agent._check_others()
    assert rendezvous.num_nodes_waiting() == 1, "the agent starts a new round"
    assert not board.failed(), "the job goes on"

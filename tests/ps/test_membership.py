"""Who a server counts as dead, also after it was started again, and what a job leaves behind."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.ps.server.membership import Members
from fleetx.ps.server.request_handler import Desk
from fleetx.ps.server.server import Server
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.errors import PeerLostError
from fleetx.ps.wire.frames import Frame, Op
from fleetx.ps.wire.handshake import Claim
from tests.ps.team import TOKEN, push, table, team

SPEC = SparseSpec(name="t", dim=2)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        patch.setattr("fleetx.ps.server.membership.time.monotonic", lambda: self.now)

    def run(self, seconds: float, members: Members, *alive: int) -> list[int]:
        """Let time pass while these workers give signs of life; who is dead then."""
        for _ in range(round(seconds)):
            self.now += 1
            for worker in alive:
                members.heard(worker)
            members.look()
        return members.dead()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_worker_that_never_comes_is_waited_for_as_long_as_the_job_is_patient(
    clock: Clock,
) -> None:
    members = Members(3, patience=300)
    assert clock.run(1000, members) == [], "nobody has come, so nobody is late"
    members.arrived(0)
    assert clock.run(290, members, 0) == []
    members.arrived(1)  # others still come
    assert clock.run(290, members, 0, 1) == []
    assert clock.run(20, members, 0, 1) == [2]
    with pytest.raises(PeerLostError, match="worker 2 is dead"):
        members.require()
    members.arrived(2)
    assert clock.run(1, members, 0, 1, 2) == []


def opened(folder: Path, workers: int = 2, patience: float = 60) -> tuple[Desk, Members]:
    members = Members(workers)
    return Desk(members, folder=folder, patience=patience), members


def test_the_dead_stay_dead_when_a_server_is_started_again(clock: Clock, tmp_path: Path) -> None:
    _, members = opened(tmp_path)
    members.arrived(0)
    members.arrived(1)
    members.left(1)
    assert clock.run(10, members, 0) == [1]
    desk, members = opened(tmp_path, patience=300)
    members.arrived(0)
    assert members.dead() == [1]
    members.require()  # of an old server's dead, synchronous jobs cannot be sure for a while
    said = {"topic": "rest", "number": 1, "value": 1.0, "strict": False}
    assert desk.call(Claim(0, 5), {"method": "agree"} | said) == {"value": 1.0}
    tick = {"method": "tick", "step": 9, "bound": 2, "done": 9}
    assert desk.call(Claim(0, 5), tick) == {"lead": 0}
    clock.run(310, members, 0)
    with pytest.raises(PeerLostError, match="worker 1 is dead"):
        members.require()
    assert not members.ended.is_set()
    desk.call(Claim(0, 5), {"method": "finish"})
    assert members.ended.is_set()


def test_who_came_back_is_not_dead_after_a_restart(clock: Clock, tmp_path: Path) -> None:
    _, members = opened(tmp_path)
    members.arrived(0)
    members.arrived(1)
    members.left(1)
    assert clock.run(10, members, 0) == [1]
    members.arrived(1)
    _, again = opened(tmp_path)
    assert again.dead() == []


def served(desk: Desk, work: Callable[[Server], None]) -> None:
    """Run a server until it ends by itself."""
    with Server(("127.0.0.1", 0), desk, TOKEN) as server:
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        work(server)
        thread.join(30)
        assert not thread.is_alive(), "the server goes on"


def finished(server: Server) -> None:
    for worker in range(server.desk.members.workers):
        server.desk.call(Claim(worker, worker), {"method": "finish"})


def made(desk: Desk) -> Any:
    message = {"method": "create", "kind": "sparse", "spec": SPEC.form()}
    desk.call(Claim(0, 1), message)
    return desk.sparse(Frame(Op.PULL, 0)).table


def test_a_job_that_is_over_leaves_a_folder_for_the_next_one(tmp_path: Path) -> None:
    desk, _ = opened(tmp_path)
    made(desk).push(np.array([1]), np.ones((1, 2), np.float32))
    desk.checkpoint(force=True)
    served(desk, finished)
    desk, members = opened(tmp_path)
    assert not members.ended.is_set()
    assert len(made(desk)) == 0


def test_a_server_that_died_at_the_very_end_says_why_it_ends_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk, _ = opened(tmp_path)
    made(desk)
    for worker in (0, 1):
        desk.call(Claim(worker, 1), {"method": "finish"})
    with caplog.at_level(logging.WARNING):
        again, members = opened(tmp_path)
    assert members.ended.is_set()
    assert "is over: this server ends" in caplog.text
    served(again, lambda server: None)
    assert not opened(tmp_path)[1].ended.is_set()


def test_what_was_not_over_is_kept(tmp_path: Path) -> None:
    with team(folder=tmp_path) as here:
        client = here.client()
        push(client, table(client, SPEC), [1], np.ones((1, 2), np.float32))
    desk, _ = opened(tmp_path / "server-0", workers=1)
    assert len(desk.sparse(Frame(Op.PULL, 0)).table) == 1


def test_a_full_disk_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, members = opened(tmp_path)
    monkeypatch.setattr("fleetx.ps.server.server.WATCH", 0.01)
    tried, enough = [], threading.Event()

    def full() -> None:
        tried.append(1)
        if len(tried) == 3:
            enough.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(desk, "checkpoint", full)

    def work(server: Server) -> None:
        assert enough.wait(30), "the watch goes on"
        finished(server)

    served(desk, work)
    assert members.over


def test_workers_meet_and_end_with_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, members = opened(tmp_path, workers=1)

    def full(file: int, parts: list[Any]) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fleetx.ps.tables.journal.os.writev", full)
    said = {"topic": "opened", "number": 1, "value": 4.0, "strict": True}
    assert desk.call(Claim(0, 5), {"method": "agree"} | said) == {"value": 4.0}
    desk.call(Claim(0, 5), {"method": "rest", "resting": True})
    desk.call(Claim(0, 5), {"method": "finish"})
    assert members.ended.is_set()

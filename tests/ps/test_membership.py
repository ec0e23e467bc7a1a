"""Who a server counts as dead, also after it was started again, and what a job leaves behind."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
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

    def run(self, seconds: float, membership: Membership, *alive: int) -> list[int]:
        """Let time pass while these workers give signs of life; who is dead then."""
        for _ in range(round(seconds)):
            self.now += 1
            for worker in alive:
                membership.heard(worker)
            membership.find_dead()
        return membership.dead()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_worker_that_never_comes_is_waited_for_as_long_as_the_job_is_patient(
    clock: Clock,
) -> None:
    membership = Membership(3, patience=300)
    assert clock.run(1000, membership) == [], "nobody has come, so nobody is late"
    membership.connected(0)
    assert clock.run(290, membership, 0) == []
    membership.connected(1)  # others still come
    assert clock.run(290, membership, 0, 1) == []
    assert clock.run(20, membership, 0, 1) == [2]
    with pytest.raises(PeerLostError, match="worker 2 is dead"):
        membership.require_alive()
    membership.connected(2)
    assert clock.run(1, membership, 0, 1, 2) == []


def opened(
    folder: Path, workers: int = 2, patience: float = 60
) -> tuple[RequestHandler, Membership]:
    membership = Membership(workers)
    return RequestHandler(membership, folder=folder, patience=patience), membership


def test_the_dead_stay_dead_when_a_server_is_started_again(clock: Clock, tmp_path: Path) -> None:
    _, membership = opened(tmp_path)
    membership.connected(0)
    membership.connected(1)
    membership.disconnected(1)
    assert clock.run(10, membership, 0) == [1]
    handler, membership = opened(tmp_path, patience=300)
    membership.connected(0)
    assert membership.dead() == [1]
    # Of an old server's dead, synchronous jobs cannot be sure for a while.
    membership.require_alive()
    said = {"topic": "rest", "number": 1, "value": 1.0, "strict": False}
    assert handler.call(Claim(0, 5), {"method": "agree"} | said) == {"value": 1.0}
    tick = {"method": "tick", "step": 9, "bound": 2, "done": 9}
    assert handler.call(Claim(0, 5), tick) == {"lead": 0}
    clock.run(310, membership, 0)
    with pytest.raises(PeerLostError, match="worker 1 is dead"):
        membership.require_alive()
    assert not membership.ended.is_set()
    handler.call(Claim(0, 5), {"method": "finish"})
    assert membership.ended.is_set()


def test_who_came_back_is_not_dead_after_a_restart(clock: Clock, tmp_path: Path) -> None:
    _, membership = opened(tmp_path)
    membership.connected(0)
    membership.connected(1)
    membership.disconnected(1)
    assert clock.run(10, membership, 0) == [1]
    membership.connected(1)
    _, again = opened(tmp_path)
    assert again.dead() == []


def logged(handler: RequestHandler, work: Callable[[Server], None]) -> None:
    """Run a server until it ends by itself."""
    with Server(("127.0.0.1", 0), handler, TOKEN) as server:
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        work(server)
        thread.join(30)
        assert not thread.is_alive(), "the server goes on"


def finished(server: Server) -> None:
    for worker in range(server.handler.membership.workers):
        server.handler.call(Claim(worker, worker), {"method": "finish"})


def made(handler: RequestHandler) -> Any:
    message = {"method": "create", "kind": "sparse", "spec": SPEC.to_plain()}
    handler.call(Claim(0, 1), message)
    return handler.sparse(Frame(Op.PULL, 0)).table


def test_a_job_that_is_over_leaves_a_folder_for_the_next_one(tmp_path: Path) -> None:
    handler, _ = opened(tmp_path)
    made(handler).push(np.array([1]), np.ones((1, 2), np.float32))
    handler.checkpoint(force=True)
    logged(handler, finished)
    handler, membership = opened(tmp_path)
    assert not membership.ended.is_set()
    assert len(made(handler)) == 0


def test_a_server_that_died_at_the_very_end_says_why_it_ends_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    handler, _ = opened(tmp_path)
    made(handler)
    for worker in (0, 1):
        handler.call(Claim(worker, 1), {"method": "finish"})
    with caplog.at_level(logging.WARNING):
        again, membership = opened(tmp_path)
    assert membership.ended.is_set()
    assert "is over: this server ends" in caplog.text
    logged(again, lambda server: None)
    assert not opened(tmp_path)[1].ended.is_set()


def test_what_was_not_over_is_kept(tmp_path: Path) -> None:
    with team(folder=tmp_path) as here:
        client = here.client()
        push(client, table(client, SPEC), [1], np.ones((1, 2), np.float32))
    handler, _ = opened(tmp_path / "server-0", workers=1)
    assert len(handler.sparse(Frame(Op.PULL, 0)).table) == 1


def test_a_full_disk_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, membership = opened(tmp_path)
    monkeypatch.setattr("fleetx.ps.server.server.WATCH", 0.01)
    tried, enough = [], threading.Event()

    def full() -> None:
        tried.append(1)
        if len(tried) == 3:
            enough.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(handler, "checkpoint", full)

    def work(server: Server) -> None:
        assert enough.wait(30), "the watch goes on"
        finished(server)

    logged(handler, work)
    assert membership.job_over


def test_workers_meet_and_end_with_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, membership = opened(tmp_path, workers=1)

    def full(file: int, parts: list[Any]) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fleetx.ps.tables.journal.os.writev", full)
    said = {"topic": "opened", "number": 1, "value": 4.0, "strict": True}
    assert handler.call(Claim(0, 5), {"method": "agree"} | said) == {"value": 4.0}
    handler.call(Claim(0, 5), {"method": "rest", "resting": True})
    handler.call(Claim(0, 5), {"method": "finish"})
    assert membership.ended.is_set()

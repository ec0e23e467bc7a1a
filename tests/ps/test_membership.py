"""Who a server counts as dead, also after it was started again, and what a job leaves behind."""

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fleetx as fleet
from fleetx import roles
from fleetx.api import servers
from fleetx.ps.server import state_lock
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.server.server import AllWorkersLostError, Server
from fleetx.ps.server.state_lock import StateInUseError
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.errors import PeerLostError
from fleetx.ps.wire.frames import Frame, Op
from fleetx.ps.wire.handshake import Claim, greet
from fleetx.ps.wire.messages import to_json
from fleetx.ps.wire.pipes import Pipe
from fleetx.roles import secrets
from fleetx.testing.limits import stretched
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


def test_a_server_that_was_stopped_takes_nobody_for_dead(clock: Clock) -> None:
    membership = Membership(2)
    membership.connected(0)
    membership.connected(1)
    assert clock.run(3, membership, 0, 1) == []
    for _ in range(3):
        clock.now += 60  # it was stopped; what workers said meanwhile is still to be read
        assert membership.find_dead() == []
        assert clock.run(2, membership, 0, 1) == []
    assert clock.run(10, membership, 0) == [1], "who is silent while it listens is dead"


def test_servers_end_when_all_workers_are_gone_for_good(clock: Clock) -> None:
    membership = Membership(2, patience=300)
    assert clock.run(1000, membership) == []
    assert not membership.ended.is_set(), "nobody has come yet"
    membership.connected(0)
    membership.connected(1)
    membership.disconnected(0)
    membership.disconnected(1)
    assert clock.run(200, membership) == [0, 1]
    membership.connected(1)  # it was started again
    membership.disconnected(1)
    assert clock.run(290, membership) == [0, 1]
    assert not membership.ended.is_set()
    clock.run(30, membership)
    assert membership.ended.is_set()
    assert membership.abandoned
    assert not membership.job_over


def test_a_copy_that_never_has_workers_does_not_end(clock: Clock) -> None:
    membership = Membership(0, patience=300)
    assert clock.run(1000, membership) == []
    assert not membership.ended.is_set()


def test_a_server_without_workers_ends_with_an_error_and_keeps_its_state(tmp_path: Path) -> None:
    membership = Membership(1, grace=0.0)
    handler = RequestHandler(membership, folder=tmp_path, patience=0.0)
    made(handler)
    with Server(("127.0.0.1", 0), handler, TOKEN) as server:
        membership.connected(0)
        membership.disconnected(0)
        with pytest.raises(AllWorkersLostError, match="keeps the state"):
            server.run()
    again = RequestHandler(Membership(1), folder=tmp_path)
    assert again.sparse(Frame(Op.PULL, 0)).spec == SPEC


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


HOLDER = """
import pathlib, sys
from fleetx.ps.server import state_lock
state_lock.hold(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_of_state_has_one_living_server(tmp_path: Path) -> None:
    """The next life of a server that was killed takes it at once."""
    folder = tmp_path / "state" / "server-0"
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StateInUseError, match=rf"process {other.pid} on .* of its own"):
            state_lock.hold(folder)
        state_lock.hold(folder.with_name("server-1"))
    finally:
        other.kill()
        other.communicate()
    state_lock.hold(folder)
    state_lock.hold(folder)
    state_lock.release()
    assert not folder.exists(), "what is accounted for there is all there is"


def test_servers_take_their_folder_before_they_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Path] = []
    monkeypatch.setattr(state_lock, "hold", held.append)
    monkeypatch.setattr(servers, "RequestHandler", lambda *_, **__: pytest.fail(str(held)))
    monkeypatch.setenv(secrets.STATE, str(tmp_path))
    role = fleet.UserDefinedRoleMaker(
        current_id=0, role=fleet.Role.SERVER, worker_num=1, server_endpoints=["127.0.0.1:6001"]
    )
    fleet.init(role)
    try:
        with pytest.raises(pytest.fail.Exception, match="server-0"):
            fleet.init_server()
    finally:
        roles.stop()


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


def test_who_is_too_far_ahead_waits_with_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetx.ps.server.worker_barriers.POLL", 0.01)
    handler, membership = opened(tmp_path, patience=0.05)
    membership.connected(0)
    membership.connected(1)
    tick = {"method": "tick", "step": 9, "bound": 2, "done": 9}
    with pytest.raises(TimeoutError, match=r"workers \[1\] have not pushed that far"):
        handler.call(Claim(0, 5), tick)


@pytest.mark.parametrize(
    "message",
    [
        {"method": "tick", "step": 9, "bound": 2, "done": 9},
        {"method": "agree", "topic": "x", "number": 1, "value": 1.0, "strict": False},
    ],
    ids=["tick", "agree"],
)
def test_nobody_waits_for_a_caller_that_hung_up(
    message: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with team(workers=2) as here:
        server, other = here.servers[0], here.client(1)
        other.call({"method": "heartbeat"})
        pipe = Pipe(socket.create_connection(("127.0.0.1", server.server_address[1])))
        greet(TOKEN, Claim(0, 7), pipe.read_exactly, pipe.send)
        body, looked, plain = to_json(message), threading.Event(), Pipe.connected

        def connected(self: Pipe) -> bool:
            looked.set()  # so it waits
            return plain(self)

        monkeypatch.setattr(Pipe, "connected", connected)
        pipe.send(Frame(Op.CALL, body=len(body)).packed(), body)
        assert looked.wait(stretched(60))
        assert server.open_connections == 2
        pipe.close()
        wait_for(lambda: server.open_connections == 1)


def wait_for(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + stretched(60)
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)

"""Requests and their answers: after errors, when a connection is lost, and to silent servers."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from fleetx.ps.tables.hashing import servers_of
from fleetx.ps.tables.initializers import Constant
from fleetx.ps.tables.rules import SGD
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire import frames
from fleetx.ps.wire.handshake import receive
from fleetx.ps.wire.pipes import Pipe
from fleetx.ps.worker import heartbeat
from fleetx.ps.worker.client import Client
from fleetx.ps.worker.heartbeat import Heartbeat
from tests.ps.team import TOKEN, Team, push, rows, table, team

SPEC = SparseSpec(name="t", dim=2, rule=SGD(1.0), initializer=Constant(0.0))
IDS = np.arange(1, 33)
OWNERS = servers_of(IDS, 2)


def test_servers_count_what_they_hold_and_serve() -> None:
    with team(2) as here:
        client, handle = filled(here)
        rows(client, handle, IDS)
        found = [handler.figures()["t"] for handler in here.handlers]
    for at, one in enumerate(found):
        own = int(np.count_nonzero(at == OWNERS))
        assert one == {"rows": own, "pulled": own, "pushed": own, "updates": 1}


def of_both(begin: int, end: int) -> Any:
    """As many ids of the first server as of the second."""
    return np.concatenate([IDS[server == OWNERS][begin:end] for server in (0, 1)])


def filled(here: Team) -> tuple[Client, Any]:
    """A table whose row of an id is the id."""
    client = here.client()
    handle = table(client, SPEC)
    push(client, handle, IDS, -np.stack([IDS, IDS], 1))
    return client, handle


def right(client: Client, handle: Any) -> bool:
    return all(
        (rows(client, handle, ids)[:, 0] == ids).all()
        for ids in (of_both(2, 4), of_both(4, 6), IDS)
    )


def test_an_error_that_no_server_expects_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It closed the connection, and was met again and again until nobody waited any more."""
    called = []

    def failing(*_: Any) -> None:
        called.append(1)
        raise LookupError("no such thing")

    with team(2) as here:
        client, handle = filled(here)
        monkeypatch.setattr(here.handlers[0], "call", failing)
        with pytest.raises(RuntimeError, match=r"server .*LookupError: no such thing \(its log"):
            client.call({"method": "figures"}, 0)
        monkeypatch.undo()
        assert right(client, handle)
    assert called == [1]


def test_answers_that_nobody_read_are_not_taken_for_later_ones() -> None:
    with team(2) as here:
        client, handle = filled(here)
        handler = here.handlers[0]
        pull: Any = handler.pull

        def fails(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        handler.pull = fails  # type: ignore[assignment, method-assign]
        with pytest.raises(RuntimeError, match="No space left"):
            rows(client, handle, of_both(0, 2))
        handler.pull = pull  # type: ignore[method-assign]
        assert right(client, handle)
        with pytest.raises(ValueError, match="complete save"):
            client.call_all({"method": "load", "folder": "nowhere", "tables": None})
        assert right(client, handle)
        assert len(client.call_all({"method": "describe"})) == 2


def test_an_interrupted_request_is_neither_answered_later_nor_sent_again() -> None:
    with team(2) as here:
        client, handle = filled(here)
        seen: list[str] = []
        call: Any = here.handlers[1].call

        def watched(claim: Any, message: Any, *more: Any) -> Any:
            seen.append(message["method"])
            return call(claim, message, *more)

        here.handlers[1].call = watched  # type: ignore[assignment, method-assign]
        answer: Any = client._answer

        def interrupted(server: int) -> Any:
            if server == 1:
                raise KeyboardInterrupt
            return answer(server)

        client._answer = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            client.call_all({"method": "shrink", "threshold": 99, "table": None})
        client._answer = answer  # type: ignore[method-assign]
        assert right(client, handle)
        client.call_all({"method": "heartbeat"})
        assert seen.count("shrink") <= 1
        assert seen.count("heartbeat") == 1


@pytest.mark.parametrize("change", [{"count": 3}, {"seq": 7}, {"op": frames.Op.READ}])
def test_an_answer_must_fit_its_request(change: dict[str, int]) -> None:
    with team(1) as here:
        client, handle = filled(here)
        channel = client.channels[0]
        ids = np.array([5, 6])
        head = frames.Frame(frames.Op.PULL, handle.numbers[0], count=2, body=16)
        channel.send(head, ids)
        asked = channel._asked.popleft()
        channel._asked.append(asked._replace(frame=asked.frame._replace(**change)))
        with pytest.raises(RuntimeError, match=r"answered .* with ROWS 0 of 2"):
            channel.receive(lambda frame, pipe: None)
        assert right(client, handle)


def test_what_must_not_be_done_twice_bears_a_number() -> None:
    with team(2) as here:
        client = here.client()
        table(client, SPEC)
        said: list[dict[str, Any]] = []
        call: Any = here.handlers[1].call

        def dying(claim: Any, message: Any, *more: Any) -> Any:
            said.append(message)
            if len(said) == 1:
                raise ConnectionResetError("a cable was pulled")
            return call(claim, message, *more)

        here.handlers[1].call = dying  # type: ignore[assignment, method-assign]
        for _ in range(2):
            client.call_all({"method": "shrink", "threshold": 9, "table": None})
        client.call_all({"method": "heartbeat"})
    assert [message.get("call") for message in said] == [1, 1, 2, None]


def test_a_server_may_think_for_longer_than_it_may_be_away() -> None:
    with team(1) as here:
        client = Client(here.endpoints, here.access(patience=0.5))
        call: Any = here.handlers[0].call
        times: list[float] = []

        def slow(claim: Any, message: Any, *more: Any) -> Any:
            times.append(time.monotonic())
            if len(times) == 1:
                time.sleep(1)
                raise ConnectionResetError("gone, and back at once")
            return call(claim, message, *more)

        here.handlers[0].call = slow  # type: ignore[assignment, method-assign]
        assert client.call({"method": "heartbeat"}) == {}
        client.close()
    assert len(times) == 2


def test_requests_that_no_message_carries_are_refused_before_they_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with team(2) as here:
        client, handle = filled(here)
        monkeypatch.setattr(frames, "MAX_BODY", 1000)
        with pytest.raises(ValueError, match="smaller batches, or more servers"):
            client.write(handle, [np.ones(400, np.float32)] * 2)
        assert right(client, handle)


@contextmanager
def silent() -> Iterator[str]:
    """A server that greets and then says nothing: its process was stopped, or its machine died."""
    listener = socket.create_server(("127.0.0.1", 0))
    kept = []

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            kept.append(sock)
            if len(kept) <= 2:  # one for heartbeats and one for requests; later not even a greeting
                pipe = Pipe(sock)
                receive(TOKEN, pipe.read_exactly, pipe.send)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
        for sock in kept:
            sock.close()


def test_waiting_for_a_server_that_has_fallen_silent_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT", 0.1)
    with silent() as endpoint:
        access = Team([], 1).access(patience=0.5)
        client = Client([endpoint], access)
        client.channels[0].send(frames.Frame(frames.Op.READ))
        beating = Heartbeat([endpoint], access, client.hang_up, answer_timeout=0.2, silence=0.5)
        failure: list[BaseException] = []

        def wait() -> None:
            try:
                client.channels[0].receive(lambda frame, pipe: None)
            except ConnectionError as error:
                failure.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        thread.join(60)
        beating.stop()
        client.close()
    assert str(failure[0]).count("did not answer for") == 1
    assert "look at its log" in str(failure[0])


def test_a_silent_server_keeps_no_sign_of_life_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT", 0.05)
    beats = threading.Semaphore(0)
    with silent() as endpoint, team(1) as here:
        call: Any = here.handlers[0].call

        def counted(claim: Any, message: Any, *more: Any) -> Any:
            beats.release()
            return call(claim, message, *more)

        here.handlers[0].call = counted  # type: ignore[assignment, method-assign]
        told: list[int] = []
        beating = Heartbeat([endpoint, *here.endpoints], here.access(), told.append, silence=100)
        for _ in range(5):
            assert beats.acquire(timeout=60)
        beating.stop()
    assert told == []


def test_the_kernel_watches_over_idle_connections() -> None:
    with team(1) as here:
        client = here.client()
        client.call({"method": "heartbeat"})
        pipe = client.channels[0]._pipe
        assert pipe is not None
        idle, between, tries, limit = (
            pipe.socket.getsockopt(socket.IPPROTO_TCP, option)
            for option in (
                socket.TCP_KEEPIDLE,
                socket.TCP_KEEPINTVL,
                socket.TCP_KEEPCNT,
                socket.TCP_USER_TIMEOUT,
            )
        )
        assert pipe.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert idle + between * tries <= 60
    assert limit == 60_000

"""Small requests of all connections are answered by one thread, and nobody waits for another."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetx.ps.server.logged_sparse_table import LoggedSparseTable
from fleetx.ps.server.server import QUICK_ONES
from fleetx.ps.server.shared_thread import Served, SharedThread
from fleetx.ps.tables.dense_table import DenseSpec
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.rules import SGD
from fleetx.ps.tables.sparse_spec import Pace, SparseSpec
from fleetx.ps.wire.channel import Request
from fleetx.ps.wire.frames import HEADER, Flag, Frame, Op
from fleetx.ps.wire.pipes import LARGE, EndedError, Pipe
from fleetx.ps.wire.request_reader import ROOM, RequestReader
from fleetx.ps.worker.client import Client
from fleetx.ps.worker.table_handle import TableHandle
from tests.ps.team import push, rows, table, team, together

SPEC = SparseSpec(name="t", dim=4, rule=SGD(1.0))
ONES = np.full((1, 4), -1, np.float32)


@pytest.fixture
def thread_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of threads that answer pushes."""
    found: list[str] = []
    whole = LoggedSparseTable.parsed

    def noted(self: Any, frame: Frame, body: memoryview) -> Any:
        found.append(threading.current_thread().name)
        return whole(self, frame, body)

    monkeypatch.setattr(LoggedSparseTable, "parsed", noted)
    return found


def served(client: Client, handle: TableHandle) -> None:
    """Let the shared thread take over the connection."""
    for _ in range(QUICK_ONES + 1):
        rows(client, handle, [0])


def test_clients_that_come_all_at_once_lose_nothing(thread_names: list[str]) -> None:
    with team(2, workers=4) as here:
        clients = [here.client(worker) for worker in range(4)]
        handle = table(clients[0], SPEC)
        before = rows(clients[0], handle, [1, 2, 3], train=True)

        def count(client: Client) -> Callable[[], None]:
            def run() -> None:
                for _ in range(50):
                    push(client, handle, [1, 2, 3], np.tile(ONES, (3, 1)), rate=1.0)

            return run

        together(*map(count, clients))
        np.testing.assert_allclose(rows(clients[0], handle, [1, 2, 3]), before + 200, rtol=1e-5)
        while "small requests" not in thread_names:  # where others have a table for long
            push(clients[0], handle, [1], ONES, rate=1.0)


def test_what_is_large_is_answered_by_the_connections_own_thread(thread_names: list[str]) -> None:
    many = np.arange(3 * LARGE // 16)
    with team() as here:
        client = here.client()
        handle = table(client, SPEC)
        for _ in range(2):
            served(client, handle)
            before = rows(client, handle, many, train=True)
            push(client, handle, many, np.tile(ONES, (len(many), 1)), rate=1.0)
            np.testing.assert_allclose(rows(client, handle, many), before + 1, rtol=1e-5)
        push(client, handle, [1], ONES, rate=1.0)
    assert "small requests" not in thread_names


def test_who_waits_for_others_keeps_nobody_waiting() -> None:
    """In step: the answer waits for a push of another worker."""
    with team(workers=2) as here:
        clients = [here.client(worker) for worker in range(2)]
        pace = Pace(workers=2)
        handle = table(clients[0], SparseSpec(name="t", dim=4, rule=SGD(1.0), pace=pace))
        before = rows(clients[0], handle, [1], train=True)
        for client in clients:
            served(client, handle)

        def one(client: Client) -> Any:
            push(client, handle, [1], ONES, rate=1.0, step=0, everywhere=True)
            batch = IdBatch.of(np.array([1]), 1)
            return client.pull(handle, batch, step=1)

        for found in together(*(lambda client=client: one(client) for client in clients)):
            np.testing.assert_allclose(found, before + 1, rtol=1e-6)


def flood(sock: socket.socket, data: bytes) -> None:
    """Send again and again, until neither end has room."""
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(data, socket.MSG_DONTWAIT)


def test_who_reads_no_answers_keeps_nobody_waiting() -> None:
    many = np.arange(LARGE // 16)
    with team(workers=2) as here:
        idle, other = here.client(0), here.client(1)
        handle = table(other, SPEC)
        served(idle, handle)
        served(other, handle)
        head = Frame(Op.PULL, handle.numbers[0], count=len(many), body=many.nbytes)
        pipe = idle.channels[0]._pipe
        assert pipe is not None
        flood(pipe.socket, head.packed() + many.tobytes())
        before = rows(other, handle, [1], train=True)
        push(other, handle, [1], ONES, rate=1.0)
        np.testing.assert_allclose(rows(other, handle, [1]), before + 1, rtol=1e-6)


def test_half_a_request_keeps_nobody_waiting() -> None:
    with team(workers=2) as here:
        slow, other = here.client(0), here.client(1)
        handle = table(other, SPEC)
        served(slow, handle)
        served(other, handle)
        head = Frame(Op.PULL, handle.numbers[0], count=2, body=16)
        pipe = slow.channels[0]._pipe
        assert pipe is not None
        pipe.send(head.packed(), b"12345678")
        served(other, handle)
        pipe.send(b"12345678")
        assert pipe.read_exactly(HEADER.size)


def test_bad_bytes_end_their_connection_and_no_other() -> None:
    with team(workers=2) as here:
        bad, other = here.client(0), here.client(1)
        handle = table(other, SPEC)
        served(bad, handle)
        served(other, handle)
        pipe = bad.channels[0]._pipe
        assert pipe is not None
        pipe.send(b"x" * HEADER.size)
        told = pipe.read_exactly(HEADER.size)
        assert told[5] == Op.ERROR
        served(other, handle)


def test_requests_of_one_piece_are_answered_in_their_order() -> None:
    """Also after a connection that was lost in between, and each change once."""
    with team() as here:
        client = here.client()
        handle = table(client, SPEC)
        dense = client.create("dense", [_dense(5)], 0)
        client.write(dense, [np.zeros(5, np.float32)], flag=Flag.INITIAL)
        before = rows(client, handle, [1], train=True)
        batch, channel = IdBatch.of(np.array([1]), 1), client.channels[0]
        whole, number = channel._answer, 0

        def lossy(read: Any) -> Frame:
            nonlocal number
            number += 1
            frame = whole(read)
            if number in {2, 9, 11, 40, 52}:
                raise ConnectionError("the answer was lost")
            return frame

        channel._answer = lossy  # type: ignore[method-assign]
        for turn in range(1, 2 * QUICK_ONES):
            found = np.empty((1, 4), np.float32)
            numbers = np.empty(5, np.float32)
            asked = client.writing(dense, [np.ones(5, np.float32)], rate=1.0)
            asked += client.pushing(handle, batch, ONES, rate=1.0)
            asked += client.pulling(handle, batch, found)
            asked += client.reading(dense, [numbers])
            answers = client.exchange(asked)
            assert [answer.op for answer in answers] == [Op.DONE, Op.DONE, Op.ROWS, Op.VALUES]
            np.testing.assert_allclose(found, before + turn, rtol=1e-6)
            np.testing.assert_allclose(numbers, np.full(5, -turn), rtol=1e-6)
        assert number > 52


def _dense(count: int) -> dict[str, Any]:
    return DenseSpec(name="d", blocks=(("w", 0, count),), options={"lr": 1.0}).to_plain()


def test_large_requests_are_sent_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    with team() as here:
        client, many = here.client(), np.arange(LARGE // 8)
        handle = table(client, SPEC)
        whole = client.channels[0].send_all

        def counted(requests: list[Request]) -> None:
            sent.append(len(requests))
            whole(requests)

        monkeypatch.setattr(client.channels[0], "send_all", counted)
        batch = IdBatch.of(many, 1)
        out = [np.empty((len(many), 4), np.float32) for _ in range(3)]
        small = client.pulling(handle, IdBatch.of(many[:5], 1), np.empty((5, 4), np.float32))
        asked = [each for array in out for each in client.pulling(handle, batch, array)]
        client.exchange([*small, *asked, *small])
    assert sent == [2, 1, 1, 1]
    assert (out[0] == out[2]).all()


def test_a_server_that_ends_gives_connections_back() -> None:
    shared, gone = SharedThread(), threading.Event()
    ours, theirs = socket.socketpair()

    class Guest:
        def fileno(self) -> int:
            return ours.fileno()

        def receive(self) -> bool:
            return True

        def serve_next(self) -> Served:
            return Served.NOTHING

    def stay() -> None:
        shared.serve(Guest())
        gone.set()

    threading.Thread(target=stay, daemon=True).start()
    shared.close()
    assert gone.wait(60)
    shared.serve(Guest())  # at once
    ours.close()
    theirs.close()


def connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    return ours, theirs


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    st.lists(st.integers(1, 200), min_size=1),
    st.booleans(),
)
def test_requests_are_whole_however_their_bytes_come(
    counts: list[int], cuts: list[int], polled: bool
) -> None:
    ours, theirs = connected()
    with ours, theirs:
        reader = RequestReader(Pipe(ours))
        bodies = [np.arange(n, dtype=np.float32).tobytes() for n in counts]
        heads = [Frame(Op.WRITE, count=n, body=4 * n).packed() for n in counts]
        data = b"".join(h + b for h, b in zip(heads, bodies, strict=True))
        found: list[bytes] = []
        at = 0
        while len(found) < len(counts):
            if at < len(data):
                size = cuts[len(found) % len(cuts)]
                theirs.sendall(data[at : at + size])
                at += size
            if polled or at < len(data):
                reader.poll()
                while (head := reader.head) is not None and reader.complete(head):
                    found.append(_whole(reader))
            else:
                found.append(_whole(reader))
        assert found == bodies
        assert reader.empty
        theirs.close()
        with pytest.raises(EndedError):
            reader.next()


def _whole(reader: RequestReader) -> bytes:
    frame, body = reader.next()
    values = np.frombuffer(body, np.float32, frame.count)
    address = values.__array_interface__["data"][0]
    assert address % 8 == 0 or not frame.count, "loops want whole words"
    return bytes(body)


def test_more_than_is_kept_can_be_read() -> None:
    ours, theirs = connected()
    body = np.arange(ROOM, dtype=np.float32)
    head = Frame(Op.WRITE, count=len(body), body=body.nbytes)
    sender = threading.Thread(target=lambda: theirs.sendall(head.packed() + body.tobytes()))
    with ours, theirs:
        sender.start()
        frame, found = RequestReader(Pipe(ours)).next()
        assert frame == head
        assert (np.frombuffer(found, np.float32) == body).all()
        sender.join()


class Ordered:
    """A connection that notes when it is served."""

    def __init__(self, name: str, requests: int, order: list[str]) -> None:
        self.name, self.left, self.order = name, requests, order
        self.ours, self.theirs = socket.socketpair()
        self.served: Callable[[], None] = lambda: None

    def fileno(self) -> int:
        return self.ours.fileno()

    def receive(self) -> bool:
        if not self.ours.recv(1):
            raise EndedError("the connection was closed")
        return self.name == "look"

    def serve_next(self) -> Served:
        self.order.append(self.name)
        self.left -= 1
        self.served()
        return Served.MORE if self.left else Served.NOTHING


def wait_for(shared: SharedThread, guests: int) -> None:
    """Until it serves so many, the last of whom may be known to it before the system."""
    while True:
        with shared._lock:
            if len(shared._stays) == guests:
                return
        time.sleep(0.01)


def test_who_looks_is_answered_between_two_changes() -> None:
    """And changes of one connection before those of another that came later."""
    shared, order, done = SharedThread(), list[str](), threading.Event()
    guests = [Ordered(name, 2, order) for name in ("first", "second", "look")]
    for guest in guests:
        threading.Thread(target=shared.serve, args=(guest,), daemon=True).start()
    wait_for(shared, len(guests))

    def others_come() -> None:
        if order == ["first"]:
            for guest in guests[1:]:
                guest.theirs.send(b"x")

    guests[0].served = others_come
    guests[1].served = lambda: done.set() if len(order) == 6 else None
    guests[0].theirs.send(b"x")
    assert done.wait(60)
    shared.close()
    assert order == ["first", "look", "look", "first", "second", "second"]


def test_who_leaves_between_two_changes_is_served_no_more() -> None:
    """Its own thread hears of it, and the others are served as before."""
    shared, order, done = SharedThread(), list[str](), threading.Event()
    first, second = (Ordered(name, 2, order) for name in ("first", "second"))
    told: list[BaseException] = []

    def stay() -> None:
        try:
            shared.serve(first)
        except EndedError as error:
            told.append(error)
            second.theirs.send(b"x")

    def leave() -> None:
        first.theirs.close()

    first.served = leave
    second.served = lambda: done.set() if order[-2:] == ["second"] * 2 else None
    threading.Thread(target=stay, daemon=True).start()
    threading.Thread(target=shared.serve, args=(second,), daemon=True).start()
    wait_for(shared, 2)
    first.theirs.send(b"x")
    assert done.wait(60)
    shared.close()
    assert len(told) == 1
    assert order == ["first", "second", "second"]

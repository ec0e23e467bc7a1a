"""Many rows of a server on the same host are read in its memory, or sent where they cannot."""

import logging
import mmap
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.ps.server.server import Server
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.rules import Adagrad
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.frames import HEADER, Frame, Op
from fleetx.ps.wire.messages import to_json
from fleetx.ps.wire.pipes import LARGE, Pipe
from fleetx.ps.wire.shared_memory_client import SharedMemoryError, SharedReplyReader, opened
from fleetx.ps.wire.shared_memory_server import NAME, SharedReplyWriter
from fleetx.ps.worker.client import Client
from fleetx.ps.worker.table_handle import TableHandle
from tests.ps.team import TOKEN, Team, push, rows, table, team

SPEC = SparseSpec(name="t", dim=16, rule=Adagrad())
MANY = 5000
assert MANY * SPEC.dim * 4 > LARGE


def sending(here: Team) -> Client:
    """A client that wants its rows sent."""
    client = Client(here.endpoints, replace(here.access(), shared_memory=False))
    here.opened.append(client)
    return client


def first(ids: Any) -> Any:
    return SPEC.initializer.rows(ids, SPEC.dim, SPEC.seed)


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all that is read from sockets in this thread."""
    found: list[int] = []
    read, me = Pipe.read, threading.current_thread()

    def noted(pipe: Pipe, view: memoryview, *, idle: bool = False) -> None:
        read(pipe, view, idle=idle)
        if threading.current_thread() is me:
            found.append(len(view))

    monkeypatch.setattr(Pipe, "read", noted)
    return found


def test_large_rows_pass_through_no_socket(came: list[int]) -> None:
    ids = np.arange(MANY)
    with team(2) as here:
        shared_memory, far = here.client(), sending(here)
        handles = table(shared_memory, SPEC), table(far, SPEC)
        expected = first(ids)
        rows(shared_memory, handles[0], ids[:20], train=True)  # asks where rows can be read
        del came[:]
        np.testing.assert_array_equal(rows(shared_memory, handles[0], ids, train=True), expected)
        assert came == [HEADER.size] * 2, "only headers came, one from each server"
        del came[:]
        np.testing.assert_array_equal(rows(far, handles[1], ids), expected)
        assert sum(came) == 2 * HEADER.size + expected.nbytes
        del came[:]
        np.testing.assert_array_equal(rows(shared_memory, handles[0], ids[:20]), expected[:20])
        assert sum(came) == 2 * HEADER.size + 20 * 64, "small replies come with their headers"


def test_updates_are_seen_in_memory() -> None:
    ids = np.arange(MANY)
    with team() as here:
        shared_memory, far = here.client(), sending(here)
        handle = table(shared_memory, SPEC)
        assert table(far, SPEC) == handle
        for step in range(3):
            push(shared_memory, handle, ids, np.full((MANY, 16), step + 1, np.float32), rate=0.1)
            seen = rows(shared_memory, handle, ids)
            np.testing.assert_array_equal(seen, rows(far, handle, ids))
            assert (seen != first(ids)).all()


def test_memory_grows_with_the_replies_and_is_not_shared_between_connections() -> None:
    with team() as here:
        clients = [here.client() for _ in range(2)]
        handles = [table(client, SPEC) for client in clients]
        for turn, size in enumerate((MANY, 3 * MANY, 100, 2 * MANY, 9 * MANY, MANY, 30 * MANY)):
            for index in range(2):
                ids = np.arange(turn + index, turn + index + size)
                seen = rows(clients[index], handles[index], ids, train=True)
                np.testing.assert_array_equal(seen, first(ids))


def files() -> set[tuple[str, int]]:
    """Descriptors of this process that are memory for replies, each with the file behind it.

    Tests before may have left some, which may go at any time.
    """
    found = set()
    for file in Path("/proc/self/fd").iterdir():
        try:
            if NAME in os.readlink(file):
                found.add((file.name, file.stat().st_ino))
        except FileNotFoundError:  # the one that lists them
            continue
    return found


def test_all_memory_is_given_back() -> None:
    before = files()
    with team() as here:
        clients = [here.client() for _ in range(3)]
        for client in clients:
            rows(client, table(client, SPEC), np.arange(MANY), train=True)
        assert files() - before
        for client in clients:
            client.close()
        await_leave(here.servers[0])
        assert not files() - before


def test_nobody_offers_memory_to_those_who_fetch_no_rows() -> None:
    before = files()
    with team() as here:
        client = here.client()
        handle = table(client, SPEC)
        client.call({"method": "describe"})
        push(client, handle, [1], np.ones((1, 16), np.float32))
        assert not files() - before


def test_a_worker_that_stops_gives_all_memory_back() -> None:
    before = files()
    with team(2) as here:
        worker = here.worker()
        handle = worker.client.create("sparse", [SPEC.to_plain()] * 2, SPEC.dim)
        batch = IdBatch.of(np.arange(2 * MANY), 2)
        pulls = [lambda c=c: c.pull(handle, batch) for c in (worker.client, worker.ahead)]
        pulls[0]()
        worker.fetch_ahead(pulls[1]).result()
        assert len(files() - before) >= 8, "at both ends of two connections to two servers"
        worker.stop()
        for server in here.servers:
            await_leave(server)
        assert not files() - before


def await_leave(server: Server) -> None:
    for _ in range(600):
        if server.open_connections == 0:
            return
        threading.Event().wait(0.1)
    raise AssertionError("a connection is still open")


def hide(patch: pytest.MonkeyPatch, how: str) -> None:
    """Let the memory of servers be out of sight, as it is from another container."""
    real = os.readlink

    def no_link(path: Any) -> str:
        if how == "no such process":
            raise FileNotFoundError(2, "No such file or directory", path)
        return "/dev/pts/3" if how == "a terminal" else real(path)

    patch.setattr("fleetx.ps.wire.shared_memory_client.os.readlink", no_link)
    if how == "a server of another job":
        patch.setattr("fleetx.ps.wire.shared_memory_server.secrets.token_bytes", _Changing())


class _Changing:
    """Says one mark to the client after it wrote another one."""

    def __call__(self, count: int) -> Any:
        class Mark(bytes):
            def hex(self, *args: Any) -> str:
                return "00" * count

        return Mark(b"x" * count)


@pytest.mark.parametrize("how", ["no such process", "a terminal", "a server of another job"])
def test_what_cannot_be_seen_is_sent(
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    came: list[int],
) -> None:
    hide(monkeypatch, how)
    ids = np.arange(MANY)
    with team() as here, caplog.at_level(logging.INFO):
        client = here.client()
        handle = table(client, SPEC)
        np.testing.assert_array_equal(rows(client, handle, ids, train=True), first(ids))
        del came[:]
        np.testing.assert_array_equal(rows(client, handle, ids), first(ids))
        assert sum(came) == HEADER.size + MANY * 64
        client.close()
        del came[:]
        np.testing.assert_array_equal(rows(client, handle, ids), first(ids))
        assert MANY * 64 in came, "also after a new connection"
    assert caplog.text.count("has to send its rows") == 1, "it is tried once"


def test_what_cannot_be_mapped_is_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, came: list[int]
) -> None:
    ids, real = np.arange(MANY), mmap.mmap

    def mapped(file: int, size: int, **options: Any) -> Any:
        if "prot" in options:  # by a client, which only reads
            raise OSError(24, "Too many open files")
        return real(file, size, **options)

    monkeypatch.setattr("fleetx.ps.wire.shared_memory_client.mmap.mmap", mapped)
    with team() as here, caplog.at_level(logging.INFO):
        client = here.client()
        handle = table(client, SPEC)
        for _ in range(2):
            del came[:]
            np.testing.assert_array_equal(rows(client, handle, ids, train=True), first(ids))
            assert MANY * 64 in came
    assert caplog.text.count("has to send its rows: [Errno 24]") == 1


def test_a_server_without_such_memory_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with team() as here:
        client = here.client()
        handle = table(client, SPEC)
        ids = np.arange(MANY)
        np.testing.assert_array_equal(rows(client, handle, ids, train=True), first(ids))
        assert client.channels[0]._shared_reader is None


def test_memory_that_cannot_grow_is_left_for_good(
    monkeypatch: pytest.MonkeyPatch, came: list[int]
) -> None:
    real, full = os.ftruncate, False

    def ftruncate(file: int, size: int) -> None:
        if full:
            raise OSError(28, "No space left on device")
        real(file, size)

    monkeypatch.setattr("fleetx.ps.wire.shared_memory_server.os.ftruncate", ftruncate)
    with team() as here:
        client = here.client()
        handle = table(client, SPEC)

        def pull(size: int) -> int:
            ids = np.arange(size)
            del came[:]
            np.testing.assert_array_equal(rows(client, handle, ids, train=True), first(ids))
            return sum(came) - HEADER.size

        pull(20)  # asks where rows can be read
        assert pull(MANY) == 0
        full = True
        assert pull(3 * MANY) == 3 * MANY * 64, "sent"
        full = False
        assert pull(9 * MANY) == 9 * MANY * 64, "the client looks at other memory"


@contextmanager
def connected(source: str = "127.0.0.1") -> Iterator[tuple[Pipe, Pipe]]:
    """A client's and a server's end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname(), source_address=(source, 0))
        here, _ = listener.accept()
    with there, here:
        yield Pipe(there), Pipe(here)


def test_a_server_on_another_host_is_not_asked() -> None:
    with connected("127.0.0.2") as (client, server):
        assert opened(client) is None
        client.send(b"x")
        assert server.read_exactly(1) == b"x", "the first byte that came"


def test_a_server_that_knows_nothing_of_it_sends() -> None:
    said = to_json({"error": "BadFrameError", "text": "operation 7 is not known here"})
    with connected() as (client, server):
        server.send(Frame(Op.ERROR, body=len(said)).packed(), said)
        with pytest.raises(SharedMemoryError, match="operation 7 is not known"):
            opened(client)


def test_encrypted_connections_offer_no_memory() -> None:
    with connected() as (_, server):
        server.secure = True
        assert SharedReplyWriter(server).offer() == {}


def test_a_reply_that_is_not_there_is_noticed() -> None:
    with connected() as (_, server):
        writer = SharedReplyWriter(server)
        place: Any = writer.offer()
        reader = SharedReplyReader(**place)
        with pytest.raises(ConnectionError, match="are not in the"):
            reader.read(memoryview(bytearray(2 * LARGE)))
        reader.close()
        writer.close()


def test_a_client_cannot_write_there() -> None:
    with connected() as (_, server):
        writer = SharedReplyWriter(server)
        place: Any = writer.offer()
        reader = SharedReplyReader(**place)
        reader.read(memoryview(bytearray(10)))
        with pytest.raises(ValueError, match="read-only"):
            reader._bytes[0] = 1
        reader.close()
        writer.close()


SERVER = """
import sys
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.server.membership import Membership
from fleetx.ps.server.server import Server

server = Server(("127.0.0.1", 0), RequestHandler(Membership(1)), sys.argv[1].encode())
print(server.server_address[1], flush=True)
server.run()
"""


def test_between_processes(came: list[int]) -> None:
    arguments = [sys.executable, "-c", SERVER, TOKEN.decode()]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            endpoint = f"127.0.0.1:{int(process.stdout.readline())}"
            client = Client([endpoint], Team([], 1).access())
            handle: TableHandle = table(client, SPEC)
            batch = IdBatch.of(np.arange(MANY), 1)
            client.pull(handle, IdBatch.of(np.arange(1), 1))  # asks where rows can be read
            del came[:]
            np.testing.assert_array_equal(client.pull(handle, batch), first(batch.ids))
            assert came == [HEADER.size]
            client.close()
        finally:
            process.kill()

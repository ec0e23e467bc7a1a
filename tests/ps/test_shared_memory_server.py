"""Replies are sent from where they were written, by whatever way a system has."""

import os
import socket
from typing import Any

import numpy as np
import pytest

from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.rules import Adagrad
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.wire.pipes import LARGE, Pipe
from fleetx.ps.wire.shared_memory_server import SharedReplyWriter
from tests.ps.team import table, team

SIZE = 4 * LARGE


def _pair() -> tuple[Pipe, socket.socket]:
    """Two ends of a connection that has room for a whole reply."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        there = socket.create_connection(listener.getsockname())
        here, _ = listener.accept()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * SIZE)
    return Pipe(here), there


def _sent(writer: SharedReplyWriter, end: socket.socket, begin: int, until: int) -> bytes:
    writer.send(begin, until)
    return end.recv(until - begin, socket.MSG_WAITALL)


@pytest.mark.parametrize("trouble", [None, "there is none", "it is refused"])
def test_what_was_written_is_sent(trouble: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str) -> int:
        raise PermissionError(1, "not permitted")

    if trouble == "there is none":
        monkeypatch.delattr(os, "memfd_create")
    elif trouble:
        monkeypatch.setattr(os, "memfd_create", refused)
    files: list[int] = []
    send_file = Pipe.send_file

    def noted(pipe: Pipe, file: int, begin: int, end: int) -> None:
        files.append(file)
        send_file(pipe, file, begin, end)

    monkeypatch.setattr(Pipe, "send_file", noted)
    here, there = _pair()
    writer, draw = SharedReplyWriter(here), np.random.default_rng(0)
    try:
        for size in (10, LARGE, SIZE, SIZE // 2, SIZE + LARGE):
            writer.reserve(size)
            written = draw.integers(0, 256, size, np.uint8)
            writer.bytes[:size] = written
            assert _sent(writer, there, 0, size) == written.tobytes()
            assert _sent(writer, there, 5, size - 1) == written[5:-1].tobytes()
    finally:
        writer.close()
        here.close()
        there.close()
    assert len(files) == (0 if trouble else 6), "only large ones are worth it"


def test_a_file_never_takes_the_place_of_encryption() -> None:
    here, there = _pair()
    here.secure = True
    writer = SharedReplyWriter(here)
    writer.reserve(SIZE)
    with pytest.raises(AssertionError, match="encrypted"):
        here.send_file(0, 0, 1)
    assert writer._file is None
    here.close()
    there.close()


def test_large_replies_do_not_mix() -> None:
    spec = SparseSpec(name="t", dim=16, rule=Adagrad())
    with team(1) as here:
        clients = [here.client() for _ in range(2)]
        handles: list[Any] = [table(client, spec) for client in clients]
        for turn in range(6):
            client, handle = clients[turn % 2], handles[turn % 2]
            batch = IdBatch.of(np.arange(1000 * turn, 1000 * turn + 5000 - turn), 1)
            rows = client.pull(handle, batch)
            first = spec.initializer.rows(batch.ids, 16, spec.seed)
            np.testing.assert_array_equal(rows, first)

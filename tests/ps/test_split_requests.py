"""Requests of more rows than a frame has room for."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.tables.entries import ShowClickEntry
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.rules import SGD
from fleetx.ps.tables.sparse_spec import Pace, SparseSpec
from fleetx.ps.wire.frames import Flag, Frame, Op
from fleetx.ps.wire.handshake import Claim
from tests.ps.team import rows, table, team

SPEC = SparseSpec(name="t", dim=4, rule=SGD(1.0))


@pytest.mark.parametrize("workers", [0, 2], ids=["as they come", "in rounds"])
@pytest.mark.parametrize("counted", [False, True])
def test_a_request_that_is_larger_than_a_frame_is_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, *, counted: bool
) -> None:
    """Exactly as one that is not: also if the server dies between the pieces."""
    monkeypatch.setattr("fleetx.ps.wire.frames.MAX_BODY", 1000)
    entry = ShowClickEntry() if counted else None
    spec = replace(SPEC, pace=Pace(workers=workers), entry=entry)
    ids = np.arange(300)
    ones = np.full((300, 4), -1, np.float32)
    stats = np.ones((300, 2), np.float32) if counted else None
    for again in (False, True):
        with team(2, workers=max(1, workers), folder=tmp_path) as here:
            clients = [here.client(worker) for worker in range(max(1, workers))]
            handles = [table(client, spec) for client in clients]
            before = rows(clients[0], handles[0], ids, train=True)
            for client, handle in zip(clients, handles, strict=True):
                if workers and again:
                    handle.versions[:] = [1, 1]
                batch = IdBatch.of(ids, 2)
                client.push(
                    handle,
                    batch,
                    ones,
                    step=handle.versions,
                    everywhere=workers > 0,
                    stats=stats,
                )
            np.testing.assert_allclose(rows(clients[0], handles[0], ids), before + 1, rtol=1e-5)
            report = clients[0].call_all({"method": "describe"})
            updates = [each["tables"]["t"]["updates"] for each in report]
            if workers:
                assert updates == [1 + again] * 2, "a round is one update"


def test_half_of_a_push_to_a_round_waits_for_the_other_half(tmp_path: Path) -> None:
    spec = replace(SPEC, pace=Pace(workers=1))
    head = Frame(Op.PUSH, 0, Flag.UNIQUE | Flag.MORE, 1, 1, 4, 0, -1.0, 24)

    def body(value: int) -> memoryview:
        return memoryview(np.array([value]).tobytes() + np.full(4, -1, np.float32).tobytes())

    def opened() -> RequestHandler:
        made = RequestHandler(Membership(1), folder=tmp_path)
        message = {"method": "create", "kind": "sparse", "spec": spec.to_plain()}
        made.call(Claim(0, 1), message)
        return made

    logged = (here := opened()).sparse(head)
    logged.change(Claim(0, 1), head, body(1))
    here.checkpoint(force=True)
    logged = opened().sparse(head)
    assert logged.version == 0
    logged.change(Claim(0, 1), head, body(1))  # sent again
    logged.change(Claim(0, 1), head._replace(seq=2, flags=Flag.UNIQUE), body(2))
    assert logged.version == 1
    back = opened().sparse(head)
    assert back.version == 1
    assert sorted(back.table.ids().tolist()) == [1, 2]

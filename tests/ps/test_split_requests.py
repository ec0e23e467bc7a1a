"""Requests of more rows than a frame has room for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fleetx.ps.server.membership import Membership
from fleetx.ps.server.request_handler import RequestHandler
from fleetx.ps.tables import saves
from fleetx.ps.tables.entries import ShowClickEntry
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.rules import SGD
from fleetx.ps.tables.sparse_spec import Pace, SparseSpec
from fleetx.ps.wire.frames import Flag, Frame, Op
from fleetx.ps.wire.handshake import Claim
from fleetx.ps.worker.carrier import Carrier
from fleetx.ps.worker.carrier_async import AsyncCarrier, HalfAsyncCarrier
from fleetx.ps.worker.carrier_geo import GeoCarrier
from tests.ps.team import Team, carried, rows, table, team, train

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


def dense_job(
    here: Team, kind: type[Carrier], steps: int, seed: int = 0
) -> tuple[list[float], list[str]]:
    """The weights of a model after some batches, and the tables that held them."""
    torch.manual_seed(seed)
    wide = [torch.nn.Linear(40, 40) for _ in range(2)]
    model = torch.nn.Sequential(*wide, torch.nn.Tanh(), torch.nn.Linear(40, 1))
    worker = here.worker()
    carrier = carried(model, worker, kind, optimizer=torch.optim.Adam, lr=0.1)
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        train(model, carrier, torch.randn(8, 40, generator=draw), torch.ones(8))
    carrier.close()
    carrier._worker = worker
    carrier.catch_up()
    worker.stop(finished=False)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    return weights, [*here.handlers[0].report()["tables"]]


@pytest.mark.parametrize("kind", [Carrier, HalfAsyncCarrier, AsyncCarrier, GeoCarrier])
def test_dense_parameters_that_no_message_carries_are_several_tables(
    monkeypatch: pytest.MonkeyPatch, kind: type[Carrier]
) -> None:
    steps = 1 if kind is AsyncCarrier else 4  # whose batches do not wait for their updates
    with team(2) as here:
        whole, names = dense_job(here, kind, steps)
    assert names == ["dense-0"]
    monkeypatch.setattr("fleetx.ps.wire.frames.MAX_BODY", 5000)
    with team(2) as here:
        found, names = dense_job(here, kind, steps)
    assert names == ["dense-0", "dense-0.1"]
    np.testing.assert_allclose(found, whole, rtol=1e-5, atol=1e-7)


def test_dense_tables_are_loaded_however_many_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetx.ps.wire.frames.MAX_BODY", 5000)
    with team(1) as here:
        trained, names = dense_job(here, Carrier, 3)
        assert len(names) == 4
        saved = [here.handlers[0].call(Claim(0, 1), _saving(tmp_path))]
        saves.write_list(tmp_path, saved, delta=False)
    with team(3) as here:
        _, names = dense_job(here, Carrier, 1, seed=5)
        assert len(names) == 2
        for handler in here.handlers:
            handler.load(tmp_path)
        loaded, _ = dense_job(here, Carrier, 0)
    np.testing.assert_array_equal(loaded, trained)


def _saving(folder: Path) -> dict[str, Any]:
    return {"method": "save", "folder": str(folder), "delta": False}

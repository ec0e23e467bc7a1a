"""Workers that train copies, and what servers tell them of each other."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fleetx.nn import SparseEmbedding
from fleetx.ps.server.logged_sparse_table import LoggedSparseTable
from fleetx.ps.tables import saves
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.initializers import Constant
from fleetx.ps.tables.rules import SGD
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.worker.carrier_geo import GeoCarrier
from fleetx.ps.worker.carrier_options import CarrierOptions
from fleetx.ps.worker.client import Client
from fleetx.ps.worker.worker import Worker
from tests.ps.team import Team, carried, push, rows, table, team, together

SPEC = SparseSpec(name="t", dim=2, rule=SGD(1.0), initializer=Constant(0.0))
ONES = np.ones((1, 2), np.float32)


def changed_ids(client: Client, handle: Any, since: list[int], reader: int) -> list[int] | None:
    found = client.changed_ids(handle, since, reader)
    return None if found is None else sorted(found.ids.tolist())


def test_a_worker_is_told_of_changes_that_are_not_its_own() -> None:
    with team(3, workers=2) as here:
        one, other = here.client(0), here.client(1)
        handle, since = table(one, SPEC), [0, 0, 0]
        table(other, SPEC)
        assert changed_ids(one, handle, since, 7) is None
        assert changed_ids(one, handle, since, 7) == []
        push(one, handle, range(10), np.ones((10, 2)), delta=True, step=7)
        push(other, handle, range(5, 15), np.ones((10, 2)), delta=True, step=8)
        push(other, handle, [14, 15], np.ones((2, 2)), delta=True, step=8)
        push(other, handle, [16], ONES)  # by the table's rule
        push(other, handle, [17], ONES, rate=0.0)  # which moves nothing
        earlier = [*since]
        assert changed_ids(one, handle, since, 7) == [*range(5, 17)]
        assert changed_ids(one, handle, since, 7) == []
        assert changed_ids(other, handle, earlier, 8) == [*range(10), 16]


def test_news_are_sorted_by_server() -> None:
    with team(3) as here:
        client, since = here.client(), [0, 0, 0]
        handle = table(client, SPEC)
        client.changed_ids(handle, since, 1)
        push(client, handle, range(100), np.ones((100, 2)), delta=True, step=2)
        found = client.changed_ids(handle, since, 1)
        assert found is not None
        expected = IdBatch.of(np.arange(100), 3)
        np.testing.assert_array_equal(found.begins, expected.begins)
        for server in range(3):
            cut = slice(found.begins[server], found.begins[server + 1])
            assert set(found.ids[cut]) == set(expected.ids[cut])


@pytest.mark.parametrize("event", ["shrink", "load", "restart"])
def test_anything_may_have_changed_after(event: str, tmp_path: Path) -> None:
    since = [0]
    with team(folder=tmp_path / "state") as here:
        client = here.client()
        handle = table(client, SPEC)
        client.changed_ids(handle, since, 1)
        push(client, handle, [1], ONES, delta=True, step=2)
        assert changed_ids(client, handle, [*since], 1) == [1]
        if event == "shrink":
            client.call({"method": "shrink", "threshold": 30, "table": None})
        else:
            said = {"method": "save", "folder": str(tmp_path / "saved"), "delta": False}
            saves.write_list(tmp_path / "saved", [client.call(said)])
        if event == "load":
            client.call({"method": "load", "folder": str(tmp_path / "saved"), "tables": None})
        if event != "restart":
            assert changed_ids(client, handle, since, 1) is None
            return
    with team(folder=tmp_path / "state") as here:
        client = here.client()
        handle = table(client, SPEC)
        np.testing.assert_array_equal(rows(client, handle, [1]), ONES)
        assert changed_ids(client, handle, since, 1) is None


def test_nothing_is_remembered_where_nobody_has_copies() -> None:
    with team() as here:
        client = here.client()
        handle = table(client, SPEC)
        push(client, handle, range(100), np.ones((100, 2)))
        (logged,) = here.handlers[0]._tables
        assert isinstance(logged, LoggedSparseTable)
        assert not logged.recent_changes._changes


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = SparseEmbedding(2, name="words", initializer=Constant(0.0))


def geo(worker: Worker, every: int = 1) -> tuple[Rows, GeoCarrier]:
    model = Rows()
    carrier = carried(
        model, worker, GeoCarrier, carrier_options=CarrierOptions(every=every), lr=1.0
    )
    assert isinstance(carrier, GeoCarrier)
    return model, carrier


def climb(model: Rows, carrier: GeoCarrier, *ids: int, by: float = 1.0) -> None:
    """Let rows grow by so much."""
    carrier.begin()
    (-by * model.words(torch.tensor(ids))).sum().backward()
    carrier.optimizer.step()
    carrier.clear_gradients()


def held(model: Rows, *ids: int) -> list[float]:
    found = model.words(torch.tensor(ids)).detach()[:, 0].tolist()
    return [float(value) for value in found]


def on_servers(here: Team, *ids: int) -> list[float]:
    client = here.client()
    return [float(value) for value in rows(client, table_of(client), ids)[:, 0]]


def table_of(client: Client) -> Any:
    spec = SparseSpec(name="words", dim=2, rule=SGD(1.0), initializer=Constant(0.0))
    return table(client, spec)


def test_workers_give_their_share_and_keep_the_rest() -> None:
    """The formulas of Paddle's geo mode: delta = (local - old) / workers, local += server - old."""
    with team(2, workers=2) as here:
        workers = [here.worker(index) for index in range(2)]
        (one, ones), (other, others) = together(*(partial(geo, worker) for worker in workers))
        climb(one, ones, 5, by=4)
        assert (on_servers(here, 5), held(one, 5)) == ([2], [4])
        climb(other, others, 5, 6, by=8)  # it begins with what the first one gave
        assert (on_servers(here, 5, 6), held(other, 5, 6)) == ([6, 4], [10, 8])
        climb(one, ones, 7, by=2)  # it is told of 5, which it has trained, and keeps its other half
        assert (on_servers(here, 5, 7), held(one, 5, 6, 7)) == ([6, 1], [8, 4, 2])
        climb(one, ones, 5, by=0)
        assert (on_servers(here, 5), held(one, 5)) == ([7], [8])
        for worker in workers:
            worker.stop()


def test_rows_of_two_models_over_one_table_are_news_to_each_other() -> None:
    with team() as here:
        worker = here.worker()
        (one, ones), (other, others) = geo(worker), geo(worker)
        climb(one, ones, 5)
        climb(other, others, 5)
        assert on_servers(here, 5) == [2]
        climb(one, ones, 6)
        assert held(one, 5) == [2]
        worker.stop()


def test_batches_of_known_rows_ask_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    pull = Client.pull

    def counted(self: Client, handle: Any, batch: IdBatch, *args: Any, **kwargs: Any) -> Any:
        asked.append(sorted(batch.ids.tolist()))
        return pull(self, handle, batch, *args, **kwargs)

    monkeypatch.setattr(Client, "pull", counted)
    with team(2, workers=2) as here:
        workers = [here.worker(index) for index in range(2)]
        (one, ones), (other, others) = together(*(partial(geo, worker, 2) for worker in workers))
        for _ in range(4):
            climb(one, ones, 1, 2, 3)
        assert asked == [[1, 2, 3]]
        climb(other, others, 3, 4)
        climb(other, others, 3, 4)
        del asked[:]
        for _ in range(4):
            climb(one, ones, 1, 2, 3)
        assert asked == [[3]], "one request for what the other has changed, at the first exchange"
        for worker in workers:
            worker.stop()

"""Saves whose worker dies on the way: what was acknowledged afterwards can be loaded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.ps.tables import saves
from fleetx.ps.tables.initializers import Constant
from fleetx.ps.tables.rules import SGD
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.worker.client import Client
from fleetx.ps.worker.table_handle import TableHandle
from tests.ps.team import push, rows, table, team

SPEC = SparseSpec(name="t", dim=2, rule=SGD(1.0), initializer=Constant(0.0))
IDS = range(40)
"""Some for each of two servers."""


def up(client: Client, handle: TableHandle, ids: Any) -> None:
    push(client, handle, ids, np.full((len(ids), 2), -1.0))


def save(client: Client, folder: Path, *, told: int | None = None, **said: Any) -> Path:
    """A save whose worker dies when it has told so many servers that it is whole."""
    delta = bool(said.get("delta", False))
    answers = client.call_all({"method": "save", "folder": str(folder), "delta": delta} | said)
    saves.write_list(folder, answers, delta=delta)
    for server in range(client.servers if told is None else told):
        client.call({"method": "saved"}, server)
    return folder


def loaded(*folders: Path) -> list[float]:
    """What one gets who loads these one after the other, on one server."""
    with team() as other:
        client = other.client()
        handle = table(client, SPEC)
        for folder in folders:
            client.call({"method": "load", "folder": str(folder), "tables": None})
        return [float(value) for value in rows(client, handle, IDS)[:, 0]]


@pytest.mark.parametrize("told", [0, 1, 2])
@pytest.mark.parametrize("delta", [False, True])
def test_deltas_after_a_save_whose_worker_died_can_be_loaded(
    tmp_path: Path, told: int, *, delta: bool
) -> None:
    """Those of some servers continued it, and those of others the save before: none fitted."""
    with team(2) as here:
        client = here.client()
        handle = table(client, SPEC)
        up(client, handle, IDS)
        first = save(client, tmp_path / "first")
        up(client, handle, [*IDS][:20])
        died = save(client, tmp_path / "died", delta=delta, told=told)
        up(client, handle, [*IDS][10:30])
        next_, last = tmp_path / "next", tmp_path / "last"
        again = here.client()  # of the worker that was started again
        save(again, next_, delta=True)
        up(client, handle, [*IDS][25:])
        save(again, last, delta=True)
        expected = rows(client, handle, IDS)[:, 0].tolist()
    chain = [first, died] if delta else [died]
    assert loaded(*chain, next_, last) == expected
    with pytest.raises(ValueError, match="load the full save and then each delta"):
        loaded(first, next_)


def test_a_save_over_the_last_one_is_continued_though_its_worker_died(tmp_path: Path) -> None:
    """The next delta continued the one that is gone, and could not be loaded."""
    with team(2) as here:
        client = here.client()
        handle = table(client, SPEC)
        up(client, handle, IDS)
        full = save(client, tmp_path / "full")
        up(client, handle, IDS)
        save(client, full, told=0)
        up(client, handle, [3])
        delta = save(client, tmp_path / "delta", delta=True)
        expected = rows(client, handle, IDS)[:, 0].tolist()
    assert loaded(full, delta) == expected


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_save_without_a_list_is_refused_and_continued_by_none(
    tmp_path: Path, written: int
) -> None:
    """Its worker died before all servers had written, or before it wrote the list."""
    with team(2) as here:
        client = here.client()
        handle = table(client, SPEC)
        up(client, handle, IDS)
        full, died = save(client, tmp_path / "full"), tmp_path / "died"
        up(client, handle, IDS)
        for server in range(written):
            client.call({"method": "save", "folder": str(died), "delta": True}, server)
        delta = save(client, tmp_path / "delta", delta=True)
        expected = rows(client, handle, IDS)[:, 0].tolist()
    assert loaded(full, delta) == expected == [2.0] * len(IDS)
    with pytest.raises(ValueError, match="is this a complete save"):
        loaded(full, died)


def test_a_delta_whose_worker_died_may_be_written_again(tmp_path: Path) -> None:
    """By the script that was started again, which gives it the same name."""
    with team(2) as here:
        client = here.client()
        handle = table(client, SPEC)
        up(client, handle, IDS)
        full = save(client, tmp_path / "full")
        up(client, handle, [1, 2])
        save(client, tmp_path / "delta", delta=True, told=0)
        up(client, handle, [2, 3])
        delta = save(client, tmp_path / "delta", delta=True)
        expected = rows(client, handle, IDS)[:, 0].tolist()
    assert loaded(full, delta) == expected

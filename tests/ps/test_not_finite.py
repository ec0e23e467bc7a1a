"""Gradients that are NaN or infinite, and what they must not do to a table."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fleetx as fleet
from fleetx.api import servers
from fleetx.ps.tables.dense_table import DenseSpec
from fleetx.ps.tables.initializers import Constant
from fleetx.ps.tables.rules import SGD
from fleetx.ps.tables.sparse_spec import Pace, SparseSpec
from fleetx.ps.wire.frames import Flag, Frame, Op
from fleetx.ps.wire.short_floats import SHORT_DTYPES
from tests.ps.team import push, rows, table, team

SPEC: dict[str, Any] = {"name": "t", "dim": 2, "rule": SGD(1.0), "initializer": Constant(0.0)}
DENSE = DenseSpec(name="d", blocks=(("w", 0, 3),), options={"lr": 1.0})


def gradients(*wrong: float) -> Any:
    """Of three rows, each of which would move by one; those of ids 1 and 2 may have a flaw."""
    made = np.full((3, 2), -1, np.float32)
    for place, value in zip(((1, 0), (2, 1)), wrong, strict=False):
        made[place] = value
    return made


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
def test_rows_that_would_be_poisoned_are_left_out_counted_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dtype: str | None
) -> None:
    with team(2, folder=tmp_path) as here, caplog.at_level(logging.WARNING):
        client = here.client()
        short = SHORT_DTYPES[dtype] if dtype else 0
        specs = [SparseSpec(**SPEC).to_plain()] * 2
        handle = client.create("sparse", specs, 2, short=short)
        push(client, handle, [0, 1, 2], gradients())
        push(client, handle, [0, 1, 2], gradients(np.nan, -np.inf))
        assert rows(client, handle, [0, 1, 2])[:, 0].tolist() == [2, 1, 1]
        report = client.call_all({"method": "describe"})
        assert sum(each["tables"]["t"]["not_finite"] for each in report) == 2
        assert sum(each["tables"]["t"]["updates"] for each in report) >= 2
    assert "worker 0 pushed gradients that are not finite to" in caplog.text
    with team(2, folder=tmp_path, on_nan="apply") as here:  # however a server is begun
        client = here.client()
        handle = client.create("sparse", specs, 2, short=short)
        assert rows(client, handle, [0, 1, 2])[:, 0].tolist() == [2, 1, 1]


def test_differences_of_copies_are_left_out_too() -> None:
    with team() as here:
        client = here.client()
        handle = table(client, SparseSpec(**SPEC))
        push(client, handle, [0, 1, 2], gradients(np.nan), delta=True)
        assert rows(client, handle, [0, 1, 2])[:, 0].tolist() == [-1, 0, -1]


def test_a_round_goes_on_without_them() -> None:
    with team(workers=2) as here:
        first, second = here.client(0), here.client(1)
        spec = SparseSpec(**SPEC, pace=Pace(workers=2))
        handle = table(first, spec)
        table(second, spec)
        push(first, handle, [0, 1, 2], gradients(np.nan), everywhere=True)
        push(second, handle, [0, 1, 2], gradients(), everywhere=True)
        assert rows(first, handle, [0, 1, 2])[:, 0].tolist() == [1, 0.5, 1]
        push(first, handle, [1], np.full((1, 2), np.nan), everywhere=True, step=1)
        push(second, handle, [1], np.full((1, 2), np.nan), everywhere=True, step=1)
        assert here.handlers[0].sparse(Frame(Op.PULL, 0)).version == 2, "it is an update"
        assert rows(first, handle, [1])[0, 0] == 0.5


@pytest.mark.parametrize("sparse", [True, False])
def test_a_push_can_be_refused_and_changes_nothing(*, sparse: bool) -> None:
    with team(on_nan="raise") as here:
        client = here.client()
        if sparse:
            handle = table(client, SparseSpec(**SPEC))
            with pytest.raises(ValueError, match=r"to 1 rows, such as that of id 1, of table 't'"):
                push(client, handle, [0, 1, 2], gradients(np.inf))
            assert (rows(client, handle, [0, 1, 2]) == 0).all()
            push(client, handle, [0, 1, 2], gradients())
            assert (rows(client, handle, [0, 1, 2]) == 1).all()
        else:
            handle = client.create("dense", [DENSE.to_plain()], 0)
            with pytest.raises(ValueError, match="2 dense parameters of table 'd'"):
                client.write(handle, [np.array([np.nan, 1, np.inf], np.float32)])


def test_dense_parameters_move_where_gradients_are_finite(tmp_path: Path) -> None:
    for again in (False, True):
        with team(folder=tmp_path) as here:
            client, out = here.client(), np.empty(3, np.float32)
            handle = client.create("dense", [DENSE.to_plain()], 0)
            if not again:
                client.write(handle, [np.full(3, 5, np.float32)], flag=Flag.INITIAL)
                client.write(handle, [np.array([np.nan, 1, np.inf], np.float32)])
            client.read(handle, [out])
            assert out.tolist() == [5, 4, 5]


def test_what_is_wanted_is_applied() -> None:
    with team(on_nan="apply") as here:
        client = here.client()
        handle = table(client, SparseSpec(**SPEC))
        push(client, handle, [0, 1, 2], gradients(np.inf))
        assert rows(client, handle, [1])[0, 0] == -np.inf


def test_large_numbers_are_not_infinite() -> None:
    with team() as here:
        client = here.client()
        handle = table(client, SparseSpec(**SPEC))
        push(client, handle, [0, 1], np.full((2, 2), -3e38, np.float32))
        assert (rows(client, handle, [0, 1]) > 1e38).all(), "though their sum is"


@pytest.mark.parametrize("answer", ["stop", None, True, ["skip"]])
def test_an_answer_that_is_not_known_is_refused(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_server", lambda call: None)
    with pytest.raises(ValueError, match="use 'skip', 'raise' or 'apply'"):
        fleet.init_server(on_nan=answer)

"""Rows in fewer bytes: what is lost, and that small steps are not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleetx.api.table_saves import save
from fleetx.ps.tables.initializers import Constant, Uniform
from fleetx.ps.tables.rules import SGD, Adagrad, Adam
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.tables.sparse_table import SparseTable
from tests.ps.team import push, rows, table, team

IDS = np.arange(2000)
ERRORS = {"float16": 2**-11, "bfloat16": 2**-8, "int8": 1 / 127}
"""The largest error of a rounding to the nearest, as a share of the largest of a row."""
BYTES = {"float32": 64, "float16": 32, "bfloat16": 32, "int8": 17}
"""Of the weights of a row of 16."""


def spec(dtype: str, dim: int = 16, **options: Any) -> SparseSpec:
    return SparseSpec(name="t", dim=dim, dtype=dtype, **options)


def pulled(table: SparseTable, ids: Any = IDS, *, train: bool = True) -> Any:
    out = np.empty((len(ids), table.spec.dim), np.float32)
    table.pull(ids, out, train=train)
    return out


@pytest.mark.parametrize("dtype", [*ERRORS])
@pytest.mark.parametrize("dim", [1, 3, 16])
def test_rows_begin_as_they_would_but_for_a_rounding(dtype: str, dim: int) -> None:
    made = {"initializer": Uniform(-0.5, 0.5)}
    exact = pulled(SparseTable(spec("float32", dim, **made)))
    found = pulled(SparseTable(spec(dtype, dim, **made)))
    allowed = ERRORS[dtype] * np.abs(exact).max(1, keepdims=True) * 1.001
    assert (np.abs(found - exact) <= allowed).all()
    assert (found != exact).any()


@pytest.mark.parametrize("dtype", [*ERRORS])
def test_steps_too_small_for_the_dtype_add_up(dtype: str) -> None:
    """Each step is below half of what the dtype can tell from nothing."""
    table = SparseTable(spec(dtype, rule=SGD(1.0), initializer=Constant(1.0)))
    pulled(table)
    step, count = np.full((len(IDS), 16), -1e-4, np.float32), 100
    step[:, 0] = 0  # which keeps the scale of whole numbers where it is
    for _ in range(count):
        table.push(IDS, step)
    moved = pulled(table) - 1
    assert abs(moved[:, 1:].mean() / (count * 1e-4) - 1) < 0.1, "right in the mean"
    assert (moved[:, 0] == 0).all(), "what has no gradient stays"


@pytest.mark.parametrize("dtype", [*ERRORS])
@pytest.mark.parametrize("rule", [SGD(0.1), Adagrad(0.1), Adam(0.1)], ids=lambda r: str(r)[:7])
def test_the_rule_is_that_of_float32(dtype: str, rule: Any) -> None:
    draw = np.random.default_rng(0)
    exact, short = (SparseTable(spec(each, rule=rule)) for each in ("float32", dtype))
    for _ in range(5):
        change = draw.standard_normal((len(IDS), 16)).astype(np.float32)
        for each in (exact, short):
            each.push(IDS, change)
    np.testing.assert_array_equal(short.part(0, 0).state, exact.part(0, 0).state)
    off = np.abs(pulled(short) - pulled(exact)) / np.abs(pulled(exact)).max(1, keepdims=True)
    assert off.max() < 12 * ERRORS[dtype]
    assert abs((pulled(short) - pulled(exact)).mean()) < ERRORS[dtype] / 50, "not to one side"


def test_the_memory_of_rows() -> None:
    for dtype, expected in BYTES.items():
        table = SparseTable(spec(dtype, rule=Adagrad()))
        before = table.nbytes
        pulled(table, IDS)
        index = table._index.nbytes
        assert table.nbytes - index == len(IDS) * (expected + 64), "state stays float32"
        assert before <= index


@pytest.mark.parametrize("dtype", [*ERRORS])
def test_the_same_rows_after_a_death_and_after_a_load(dtype: str, tmp_path: Path) -> None:
    form, draw = spec(dtype, rule=Adagrad(0.1)), np.random.default_rng(0)
    with team(folder=tmp_path / "state") as here:
        worker = here.worker()
        client = worker.client
        handle = table(client, form)
        for turn in range(6):
            ids = draw.choice(IDS, 500, replace=False)
            push(client, handle, ids, draw.standard_normal((500, 16)).astype(np.float32))
            if turn == 2:
                here.handlers[0].checkpoint(force=True)
        expected = rows(client, handle, IDS)
        save(worker, tmp_path / "saved", delta=False)
    with team(folder=tmp_path / "state") as here:
        client = here.client()
        np.testing.assert_array_equal(rows(client, table(client, form), IDS), expected)
    for other in (dtype, "float32"):
        with team() as here:
            client = here.client()
            handle = table(client, spec(other, rule=Adagrad(0.1)))
            client.call_all({"method": "load", "folder": str(tmp_path / "saved")})
            found = rows(client, handle, IDS)
            np.testing.assert_array_equal(found, expected)


def test_numbers_too_large_for_float16_are_its_largest() -> None:
    table = SparseTable(spec("float16", dim=2, rule=SGD(1.0)))
    table.push(np.array([1]), np.array([[-1e9, 1e9]], np.float32))
    assert pulled(table, np.array([1])).tolist() == [[65504, -65504]]

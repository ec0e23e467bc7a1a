"""Weights and state of a row, in one place or in two."""

import numpy as np
import pytest
import torch

from fleetx.ps.tables.kernels import numba_kernels, numpy_kernels
from fleetx.ps.tables.row_store import RowStore
from fleetx.ps.tables.rules import SGD, Adagrad, Adam, Rule
from fleetx.ps.tables.sparse_spec import SparseSpec
from fleetx.ps.tables.sparse_table import SparseTable

MADE = {SGD: torch.optim.SGD, Adagrad: torch.optim.Adagrad, Adam: torch.optim.Adam}


@pytest.mark.parametrize(
    ("dim", "rule", "neighbours"),
    [
        (16, Adagrad(), True),
        (8, Adagrad(), True),
        (32, SGD(), True),
        (4, Adagrad(), False),
        (16, Adam(), False),
    ],
)
def test_rows_that_fill_cache_lines_have_their_state_beside_them(
    dim: int, rule: Rule, neighbours: bool
) -> None:
    store = RowStore(dim, rule, counted=True)
    assert (store.weights.arena is store.state.arena) == neighbours
    store.weights.array[:2] = 7
    slots = store.take(100_000)
    assert slots.tolist() == [*range(100_000)]
    assert store.weights.array[1].tolist() == [7] * dim, "growing moves no number"
    assert store.state.array[slots].max(initial=0) == 0
    assert store.nbytes == 100_000 * 4 * (dim + rule.state_width(dim) + 2)


@pytest.mark.parametrize("engine", [numpy_kernels, numba_kernels], ids=["numpy", "numba"])
@pytest.mark.parametrize(
    "rule", [SGD(0.1), Adagrad(0.1), Adam(0.1)], ids=lambda rule: str(rule)[:7]
)
@pytest.mark.parametrize("dim", [1, 4, 8, 16, 24, 40])
def test_rows_of_any_width_move_as_torch_moves_them(engine: object, rule: Rule, dim: int) -> None:
    spec = SparseSpec(name="t", dim=dim, rule=rule)
    table, ids = SparseTable(spec, engine), np.arange(60)  # type: ignore[arg-type]
    rows = np.empty((60, dim), np.float32)
    table.pull(ids, rows, train=True)
    weights = torch.nn.Parameter(torch.from_numpy(rows.copy()))
    theirs = MADE[type(rule)]([weights], lr=rule.lr)
    for step in range(3):
        gradients = np.random.default_rng(step).standard_normal((60, dim), np.float32)
        table.push(ids, gradients, unique=True)
        weights.grad = torch.from_numpy(gradients)
        theirs.step()
    table.add(ids[:50], np.ones((50, dim), np.float32), unique=True)
    other = SparseTable(spec, engine)  # type: ignore[arg-type]
    other.put(table.part(0, 0))
    for each in (table, other):
        each.pull(ids, rows, train=False)
        expected = weights.detach().numpy() + (ids < 50)[:, None]
        np.testing.assert_allclose(rows, expected, rtol=2e-5, atol=2e-6)
    one, two = other.part(0, 0), table.part(0, 0)
    assert (one.state[np.argsort(one.ids)] == two.state[np.argsort(two.ids)]).all()

"""Both engines do the same with rows."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fleetx.ps.tables.initializers import Uniform
from fleetx.ps.tables.kernels import numba_kernels, numpy_kernels
from fleetx.ps.tables.rules import KNOWN_STEPS, Adam

WIDTHS = [1, 3, 8, 16, 24, 40]
ENGINES: list[ModuleType] = [numpy_kernels, numba_kernels]


def floats(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def slots(count: int, of: int) -> Any:
    """Different ones, in an order that is chance."""
    return np.random.default_rng(count).permutation(of)[:count]


@pytest.mark.parametrize("beside", [0, 2, 3], ids=lambda more: f"{more} more in a row")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("engine", ENGINES, ids=["numpy", "numba"])
def test_rows_are_gathered_and_those_that_are_not_there_are_zero(
    engine: ModuleType, width: int, beside: int
) -> None:
    rows, wanted = floats(50, width + beside), slots(40, 50)
    wanted[::7] = -1
    out = np.full((40, width), 9, np.float32)
    engine.gather(rows, wanted, out)
    engine.clear(wanted, out)
    expected = np.where(wanted[:, None] < 0, np.float32(0), rows[wanted, :width])
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("engine", ENGINES, ids=["numpy", "numba"])
def test_bytes_of_rows_are_copied_to_records_and_back(engine: ModuleType, width: int) -> None:
    draw, chosen = np.random.default_rng(width), slots(40, 50)
    rows, records = draw.integers(0, 256, (50, width + 5), np.uint8), np.zeros((40, 60), np.uint8)
    engine.copy_out(rows, 3, chosen, records, 7, width)
    np.testing.assert_array_equal(records[:, 7 : 7 + width], rows[chosen, 3 : 3 + width])
    assert not records[:, :7].any()
    assert not records[:, 7 + width :].any()
    copy = np.zeros_like(rows)
    records.flags.writeable = False  # as what a file gives
    engine.copy_in(copy, 3, chosen, records, 7, width)
    expected = np.zeros_like(rows)
    expected[chosen, 3 : 3 + width] = rows[chosen, 3 : 3 + width]
    np.testing.assert_array_equal(copy, expected)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("engine", ENGINES, ids=["numpy", "numba"])
def test_rows_are_picked_as_often_as_wanted(engine: ModuleType, width: int) -> None:
    rows, places = floats(9, width), np.random.default_rng(0).integers(0, 9, 100)
    out = np.empty((100, width), np.float32)
    engine.pick(rows, places, out)
    np.testing.assert_array_equal(out, rows[places])


@pytest.mark.parametrize("beside", [0, 2])
@pytest.mark.parametrize("width", WIDTHS)
def test_both_exchange_alike(width: int, beside: int) -> None:
    chosen, theirs = slots(30, 50), floats(30, width)
    found = []
    for engine in ENGINES:
        rows, before = floats(50, width + beside), floats(51, width)[:50]
        out = np.empty((30, width), np.float32)
        engine.differences(rows, before, chosen, 0.25, out)
        engine.renew(rows, before, chosen, theirs)
        np.testing.assert_array_equal(before[chosen], theirs)
        found.append((rows, before, out))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(found[0][0][:, width:], floats(50, width + beside)[:, width:])


@pytest.mark.parametrize("leave", [True, False])
@pytest.mark.parametrize("kind", [np.int8, np.int64])
@pytest.mark.parametrize("engine", ENGINES, ids=["numpy", "numba"])
def test_marks_that_differ_are_found(engine: ModuleType, kind: Any, leave: bool) -> None:
    marks = np.arange(50, dtype=kind).reshape(50, 1) % 3
    chosen, out = slots(30, 50), np.empty(30, np.int64)
    expected = np.flatnonzero(chosen % 3 != 2)
    count = engine.find_differing(marks[:, 0], chosen, 2, leave, out)
    np.testing.assert_array_equal(out[:count], expected)
    after = np.arange(50) % 3
    if not leave:
        after[chosen] = 2
    np.testing.assert_array_equal(marks[:, 0], after)


@pytest.mark.parametrize("beside", [0, 2])
@pytest.mark.parametrize("width", WIDTHS)
def test_both_begin_rows_alike_to_the_last_bit(width: int, beside: int) -> None:
    chosen, ids = slots(30, 50), np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 30)
    found = []
    for engine in ENGINES:
        rows = floats(50, width + beside)
        engine.fill_uniform(rows, chosen, ids, width, 7, -0.3, 0.2)
        found.append(rows)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0][chosen, :width], Uniform(-0.3, 0.2).rows(ids, width, 7))


@pytest.mark.parametrize("step", [1, 2, 100, KNOWN_STEPS - 2, KNOWN_STEPS - 1, 10**6])
def test_both_move_rows_by_adam_alike_at_any_count_of_steps(step: int) -> None:
    chosen, gradients, rule = slots(30, 50), floats(30, 8), Adam(0.1)
    found = []
    for engine in ENGINES:
        rows, state = floats(50, 8), np.abs(floats(50, 17))
        state[:, 16] = step - 1
        rule.apply(engine, (rows, state, 0), chosen, gradients, 0.1)
        assert (state[chosen, 16] == step).all()
        found.append(rows)
    np.testing.assert_allclose(found[0], found[1], rtol=2e-5, atol=1e-6)
    mean = 0.9 * np.abs(floats(50, 17))[chosen, :8] + 0.1 * gradients
    square = 0.999 * np.abs(floats(50, 17))[chosen, 8:16] + 0.001 * gradients**2
    spread = np.sqrt(square / (1 - 0.999**step)) + 1e-8
    moved = floats(50, 8)[chosen] - 0.1 * mean / (1 - 0.9**step) / spread
    np.testing.assert_allclose(found[1][chosen], moved, rtol=1e-3, atol=1e-4)

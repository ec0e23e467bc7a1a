"""Dense tables move as torch's optimizers do, with compiled loops and without."""

import inspect
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from fleetx.ps.tables.dense_rules import OPTIMIZERS, dense_rule
from fleetx.ps.tables.dense_table import DenseSpec, DenseTable
from fleetx.ps.tables.kernels import numba_kernels, numpy_kernels
from fleetx.ps.tables.sparse_spec import Pace
from fleetx.ps.worker.dense_group import DenseGroup

ENGINES: list[ModuleType] = [numpy_kernels, numba_kernels]
RULES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adagrad", {}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.3}),
    ("Adam", {}),
    ("Adam", {"betas": [0.8, 0.9], "weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    ("Adam", {"weight_decay": 0.2, "decoupled_weight_decay": True}),
    ("AdamW", {"weight_decay": 0.2}),
    ("AdamW", {"eps": 1e-3, "amsgrad": True}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.5, "weight_decay": 0.1, "maximize": True}),
    ("RMSprop", {"centered": True, "momentum": 0.3, "alpha": 0.8}),
]
SIZE, STEPS = 37, 6
NAMES = [f"{name} {options}" for name, options in RULES]


def gradients() -> list[Any]:
    drawn = np.random.default_rng(3)
    # Of different sizes, and fewer and fewer: the largest square so far must stay behind.
    return [
        (drawn.standard_normal(SIZE) * 10.0 ** (1 - step)).astype(np.float32)
        for step in range(STEPS)
    ]


def by_torch(name: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    values = torch.nn.Parameter(torch.linspace(-1, 1, SIZE))
    plain = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
    make: Any = OPTIMIZERS[name]
    optimizer = make([values], lr=0.01, **plain)
    for step, each in enumerate(gradients()):
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + step)
        values.grad = torch.from_numpy(each)
        optimizer.step()
    state = {key: v for key, v in optimizer.state[values].items() if v is not None}
    return values.detach().numpy(), {key: v.numpy() for key, v in state.items()}


@pytest.mark.parametrize("engine", ENGINES, ids=["numpy", "numba"])
@pytest.mark.parametrize(("name", "options"), RULES, ids=NAMES)
def test_rules_are_those_of_torch(engine: ModuleType, name: str, options: dict[str, Any]) -> None:
    rule = dense_rule(name, {"lr": 0.01, **options})
    values = np.linspace(-1, 1, SIZE, dtype=np.float32)
    state = rule.first_state(values)
    for step, each in enumerate(gradients()):
        rule.move(engine, values, each, state, 0.01 / (1 + step))
    expected, kept = by_torch(name, options)
    np.testing.assert_allclose(values, expected, rtol=2e-5, atol=1e-6)
    assert sorted(state) == sorted(kept), "saves are those of torch's optimizers"
    for key, array in kept.items():
        assert state[key].shape == array.shape
        np.testing.assert_allclose(state[key], array, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), RULES, ids=NAMES)
def test_a_copy_goes_on_as_the_table_does(name: str, options: dict[str, Any]) -> None:
    spec = DenseSpec(
        name="d", blocks=(("w", 0, SIZE),), optimizer=name, options={"lr": 0.01, **options}
    )
    table, copy = DenseTable(spec), DenseTable(spec)
    table.fill(np.linspace(-1, 1, SIZE, dtype=np.float32))
    first, *rest = gradients()
    table.push(first)
    copy.put(table.arrays())
    for each in rest:
        table.push(each)
        copy.push(each)
    for key, array in table.arrays().items():
        assert (copy.arrays()[key] == array).all(), key


def test_gradients_in_memory_that_nobody_may_write_to_are_taken() -> None:
    spec = DenseSpec(name="d", blocks=(("w", 0, 4),), options={"lr": 0.5})
    table = DenseTable(spec)
    table.push(np.frombuffer(np.ones(4, np.float32).tobytes(), np.float32))
    assert table.values.tolist() == [-0.5] * 4


def test_options_that_torch_refuses_are_refused() -> None:
    with pytest.raises(ValueError, match="momentum"):
        dense_rule("SGD", {"lr": 0.1, "momentum": -1.0})


@pytest.mark.parametrize("engine", ENGINES, ids=["numpy", "numba"])
def test_numbers_that_are_not_finite_are_seen(engine: ModuleType) -> None:
    largest = np.finfo(np.float32).max
    fine = np.array([0.0, -0.0, 1e-45, largest, -largest] * 9, np.float32)
    assert engine.all_finite(fine.view(np.int32))
    assert engine.all_finite(fine[:0].view(np.int32))
    for wrong in (np.inf, -np.inf, np.nan, -np.nan):
        for at in (0, 22, 44):
            other = fine.copy()
            other[at] = wrong
            assert not engine.all_finite(other.view(np.int32)), (wrong, at)


CHOOSES = {"params", "foreach", "fused", "capturable", "differentiable"}
"""What chooses among implementations of one rule."""


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_options_that_change_the_mathematics_reach_the_servers(name: str) -> None:
    """One that torch adds, and nobody here knows, would be left out in silence."""
    parameter, client = torch.nn.Parameter(torch.zeros(3)), Mock()
    make: Any = OPTIMIZERS[name]
    (group,) = make([parameter]).param_groups
    DenseGroup("dense-0", {"w": parameter}, [(("w", 0, 3),)]).create(client, name, group, Pace())
    (spec,) = client.create.call_args.args[1]
    assert spec["options"].keys() == inspect.signature(make).parameters.keys() - CHOOSES

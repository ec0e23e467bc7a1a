"""LARS: the formula, every path that computes it, and life as a torch optimizer."""

import copy
import json
import subprocess
import weakref
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from fleetx.optim.lars import Lars
from fleetx.strategies.layerwise import layers
from fleetx.testing import world
from tests.programs import python
from tests.strategies.layerwise.layers import (
    DEVICES,
    EXCLUDED,
    STEPS,
    Trajectory,
    assert_same,
    gradients,
    graph_and_eager,
    largest,
    parameters,
    train,
)

GOLDEN = Path(__file__).parents[2] / "golden"
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "L2, ascent": {"weight_decay": 0.05, "maximize": True},
    "no momentum": {"momentum": 0.0},
    "no decay": {"lars_weight_decay": 0.0},
    "epsilon": {"epsilon": 0.1},
    "tiny rate": {"lars_coeff": 1e-12},
}


def one_step(p: Tensor, g: Tensor, v: Tensor, lr: float, wd: float, **options: Any) -> None:
    """The formula, in the precision of its arguments."""
    coeff, epsilon = options.get("lars_coeff", 0.001), options.get("epsilon", 0.0)
    g = (-g if options.get("maximize") else g) + options.get("weight_decay", 0.0) * p
    rate, weight, gradient = lr, float(p.norm()), float(g.norm())
    if wd > 0 and weight > 0 and gradient > 0:
        rate = lr * coeff * weight / (gradient + wd * weight + epsilon)
    v.copy_(options.get("momentum", 0.9) * v + rate * (g + wd * p))
    p.sub_(v)


def test_layers_are_sorted_once_though_gradients_move(monkeypatch: pytest.MonkeyPatch) -> None:
    sorting = create_autospec(Lars._sort, side_effect=Lars._sort)
    monkeypatch.setattr(Lars, "_sort", sorting)
    params = parameters()
    rule, held = Lars(params, lr=0.1), list[Tensor]()
    for _ in range(3):
        for param in params:
            param.grad = torch.randn_like(param)
            held.append(param.grad)  # so that the next ones lie elsewhere
        rule.step()
    assert sorting.call_count == 1
    wide = next(param for param in params if param.dim() == 2)
    wide.grad = torch.randn(wide.shape[::-1]).t()
    rule.step()
    assert sorting.call_count == 2


def reference(lr: float, shapes: Any = None, **options: Any) -> Trajectory:
    """The trajectory of ``train`` in double precision, tensor by tensor."""
    params = parameters(shapes=shapes)
    values = [p.detach().double() for p in params]
    velocities = [torch.zeros_like(value) for value in values]
    reach = largest(values)
    decay = options.pop("lars_weight_decay", 0.0005)
    for step in range(STEPS):
        for number, grad in enumerate(gradients(params, step)):
            if grad is not None:
                wd = 0.0 if number in EXCLUDED else decay
                one_step(values[number], grad.double(), velocities[number], lr, wd, **options)
        reach = [max(pair) for pair in zip(reach, largest(values), strict=True)]
    return Trajectory(values, reach)


PATHS = [(False, 0), (None, 0), (None, 1 << 14)]
"""List operations, one fused kernel per tensor, and what such small tensors really take."""


@pytest.mark.parametrize(("fused", "small"), PATHS)
def test_the_trajectory_is_that_of_paddle(
    fused: bool | None, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "SMALL", small)
    data = json.loads((GOLDEN / "lars_default_exclude.json").read_text())
    params = {name: nn.Parameter(torch.tensor(v)) for name, v in data["initial_params"].items()}
    excluded = tuple(at for at, name in enumerate(params) if ".b" in name or "batch_norm" in name)
    assert excluded == (1, 2)
    optimizer = Lars([{"params": params.values(), "excluded": excluded}], lr=0.1, fused=fused)
    for step, grads in enumerate(data["grads"]):
        for name, param in params.items():
            param.grad = torch.tensor(grads[name])
        optimizer.step()
        values = data["params_after_step"][step]
        states = data["optimizer_state_after_step"][step]
        for name, param in params.items():
            velocity = optimizer.state[param]["velocity"]
            assert_same([param.detach()], [torch.tensor(values[name])], rtol=1e-6)
            assert_same([velocity], [torch.tensor(states[f"{name}_velocity_0"])], rtol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("kind", OPTIONS)
def test_every_path_follows_the_formula(device: str, fused: bool | None, kind: str) -> None:
    found = train(Lars, device=device, lr=0.5, fused=fused, **OPTIONS[kind])
    assert_same(found, reference(0.5, **OPTIONS[kind]), rtol=2e-6)


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
@pytest.mark.parametrize("fused", [None, False])
def test_a_step_waits_for_nothing_and_can_be_captured(fused: bool | None) -> None:
    eager, replayed = graph_and_eager(partial(Lars, fused=fused), 0.5)
    assert_same(replayed, eager, rtol=1e-7)


@given(st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=3, max_size=6))
@settings(max_examples=25, deadline=None)
def test_any_shape_follows_the_formula(shapes: list[list[int]]) -> None:
    expected = reference(10.0, shapes=shapes)
    for fused, small in ((False, 0), (None, 0), (None, 500)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layers, "SMALL", small)
            found = train(Lars, shapes=shapes, lr=10.0, fused=fused)
        assert_same(found, expected, rtol=5e-6)


def test_the_norm_of_a_large_tensor_keeps_its_digits() -> None:
    param = nn.Parameter(torch.randn(2_000_003))
    param.grad = torch.randn_like(param)
    velocity = torch.zeros(param.shape, dtype=torch.float64)
    one_step(param.detach().double(), param.grad.double(), velocity, 10.0, 0.0005)
    for fused in (None, False):
        ours = copy.deepcopy(param)
        ours.grad = param.grad
        optimizer = Lars([ours], lr=10.0, fused=fused)
        optimizer.step()
        found = optimizer.state[ours]["velocity"].double()
        assert_same([found], [velocity], rtol=1e-5)


def test_what_has_no_norm_moves_with_the_full_rate() -> None:
    zero, dead = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.full((2,), 2.0))
    zero.grad, dead.grad = torch.tensor([1.0, -2.0, 0.0]), torch.zeros(2)
    Lars([zero, dead], lr=0.5, momentum=0.9, lars_weight_decay=0.1).step()
    assert zero.tolist() == [-0.5, 1.0, 0.0]
    torch.testing.assert_close(dead.detach(), torch.full((2,), 2.0 - 0.5 * 0.1 * 2.0))


def test_a_new_learning_rate_acts_with_the_lag_of_the_momentum() -> None:
    param = nn.Parameter(torch.zeros(1))
    optimizer = Lars([{"params": [param], "excluded": (0,)}], lr=1.0, momentum=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: float(epoch == 0))
    places = []
    for _ in range(3):
        param.grad = torch.ones(1)
        optimizer.step()
        schedule.step()
        places.append(param.item())
    # SGD would stand still at a rate of zero; here the velocity 1 goes on as 1/2, 1/4.
    assert places == [-1.0, -1.5, -1.75]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fused", [None, False])
def test_the_rate_may_be_a_tensor(device: str, fused: bool | None) -> None:
    lr = torch.tensor(0.5, device=device)
    found = train(Lars, device=device, lr=lr, fused=fused)
    assert_same(found, reference(0.5), rtol=2e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_takes_its_norms_in_single(device: str, dtype: torch.dtype) -> None:
    param = nn.Parameter(torch.full((1000,), 30.0, device=device, dtype=dtype))
    param.grad = torch.full_like(param, 30.0)  # the sum of squares is beyond float16
    optimizer = Lars([param], lr=100.0, lars_weight_decay=1e-9)
    optimizer.step()
    assert optimizer.state[param]["velocity"].dtype is torch.float32
    torch.testing.assert_close(
        optimizer.state[param]["velocity"].cpu(), torch.full((1000,), 3.0), rtol=1e-5, atol=0
    )
    assert param[0].item() == 27.0


def test_groups_have_options_of_their_own() -> None:
    first, second = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    optimizer = Lars([{"params": [first], "lr": 1.0}], lr=2.0, lars_weight_decay=0.0)
    optimizer.add_param_group({"params": [second]})
    first.grad = second.grad = torch.ones(4)
    optimizer.step()
    assert first.tolist() == [0.0] * 4
    assert second.tolist() == [-1.0] * 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be at least 0"),
        ({"momentum": -0.1}, "momentum must be at least 0"),
        ({"lars_coeff": -1.0}, "lars_coeff must be at least 0"),
        ({"excluded": (1,)}, r"positions in the group's 1 parameters, got \[1\]"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lars([nn.Parameter(torch.ones(1))], **options)


def test_sparse_gradients_and_complex_parameters_are_refused() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse gradient"):
        Lars(table.parameters()).step()
    with pytest.raises(TypeError, match="complex"):
        Lars([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])


def job(dtype: torch.dtype = torch.float32) -> tuple[list[nn.Parameter], Lars]:
    params = parameters(dtype=dtype)
    return params, Lars([{"params": params, "excluded": EXCLUDED}], lr=5.0)


def advance(params: list[nn.Parameter], optimizer: Lars, steps: range) -> None:
    for step in steps:
        for param, grad in zip(params, gradients(params, step), strict=True):
            param.grad = grad
        optimizer.step()


RESUME = """
import sys, torch
from tests.strategies.layerwise.test_lars_optimizer import advance, job
saved = torch.load(sys.argv[1])
torch.set_num_threads(saved["threads"])  # in which sums are added up
params, optimizer = job(saved["params"][0].dtype)
for param, value in zip(params, saved["params"]):
    param.data.copy_(value)
optimizer.load_state_dict(saved["optimizer"])
advance(params, optimizer, range(3, 6))
torch.save(params, sys.argv[1])
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_new_process_goes_on_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    params, optimizer = job(dtype)
    advance(params, optimizer, range(3))
    file = tmp_path / "state.pt"
    saved = {"params": params, "optimizer": optimizer.state_dict()}
    torch.save(saved | {"threads": torch.get_num_threads()}, file)
    subprocess.run([python(), "-c", RESUME, str(file)], check=True)
    advance(params, optimizer, range(3, 6))
    resumed = torch.load(file)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(params, resumed, strict=True))


def test_a_copy_and_a_loaded_state_share_nothing() -> None:
    params, optimizer = job()
    advance(params, optimizer, range(2))
    others, other = job()
    other.load_state_dict(optimizer.state_dict())
    velocity = other.state[others[0]]["velocity"].clone()
    copy.deepcopy(optimizer).step()
    advance(params, optimizer, range(2, 3))
    assert torch.equal(other.state[others[0]]["velocity"], velocity)


def test_a_cleared_state_starts_afresh() -> None:
    params, optimizer = job()
    start = copy.deepcopy(params)
    advance(params, optimizer, range(1))
    first = [p.detach().clone() for p in params]
    for param, value in zip(params, start, strict=True):
        param.data.copy_(value)
    optimizer.state.clear()
    optimizer.step()
    assert all(torch.equal(p, value) for p, value in zip(params, first, strict=True))


def test_a_step_does_not_keep_gradients_alive() -> None:
    params, optimizer = job()
    advance(params, optimizer, range(2))
    grad = weakref.ref(params[0].grad)
    optimizer.zero_grad()
    assert grad() is None


def test_gradients_that_come_and_go_find_their_parameters() -> None:
    first, second = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))
    optimizer = Lars([first, second], lr=1.0, momentum=0.5, lars_weight_decay=0.0)
    for moving, resting in ((first, second), (second, first), (first, second)):
        moving.grad, resting.grad = torch.ones_like(moving), None
        optimizer.step()
    assert first.tolist() == [-2.5] * 3
    assert second.tolist() == [-1.0] * 2


def test_the_state_of_another_rule_is_refused() -> None:
    params, optimizer = job()
    state = torch.optim.SGD([{"params": params}], lr=0.1, momentum=0.9).state_dict()
    with pytest.raises(ValueError, match="not one of Lars: its groups have no 'lars_coeff'"):
        optimizer.load_state_dict(state)


def test_exclusion_is_not_taken_from_a_checkpoint() -> None:
    _, optimizer = job()
    optimizer.load_state_dict(Lars(parameters(), lr=1.0).state_dict())
    assert optimizer.param_groups[0]["lr"] == 1.0
    assert optimizer.param_groups[0]["excluded"] == EXCLUDED


def spread() -> list[Tensor]:
    """``train`` with parameters cut over two ranks, put together again."""
    mesh = init_device_mesh("cpu", (2,))
    whole = parameters(shapes=((6, 4), (5,), (3, 3)))
    places: list[list[Placement]] = [[Shard(0)], [Shard(0)], [Replicate()]]
    params = [
        nn.Parameter(distribute_tensor(p.detach(), mesh, place))
        for p, place in zip(whole, places, strict=True)
    ]
    optimizer = Lars([{"params": params, "excluded": EXCLUDED}], lr=10.0)
    for step in range(STEPS):
        for param, grad, place in zip(params, gradients(whole, step), places, strict=True):
            param.grad = None if grad is None else distribute_tensor(grad, mesh, place)
        optimizer.step()
    return [param.full_tensor().detach().double() for param in params]  # type: ignore[attr-defined]


def test_norms_of_spread_parameters_are_those_of_the_whole() -> None:
    expected = reference(10.0, shapes=((6, 4), (5,), (3, 3)))
    for found in world(2).run(spread):
        assert_same(found, expected, rtol=2e-6)

"""LAMB: the formula, every path that computes it, and life as a torch optimizer."""

import json
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor

from fleetx.optim.lamb import Lamb
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
    "betas": {"betas": (0.0, 0.5), "eps": 0.1},
    "no decay": {"lamb_weight_decay": 0.0},
}


def one_step(  # noqa: PLR0917
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: int, lr: float, wd: float, **options: Any
) -> None:
    """The formula, in the precision of its arguments."""
    beta1, beta2 = options.get("betas", (0.9, 0.999))
    g = (-g if options.get("maximize") else g) + options.get("weight_decay", 0.0) * p
    m.copy_(beta1 * m + (1 - beta1) * g)
    v.copy_(beta2 * v + (1 - beta2) * g * g)
    r = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + options.get("eps", 1e-8)) + wd * p
    weight, length = float(p.norm()), float(r.norm())
    p.sub_(lr * (weight / length if wd > 0 and weight > 0 and length > 0 else 1.0) * r)


def reference(lr: float, shapes: Any = None, **options: Any) -> Trajectory:
    """The trajectory of ``train`` in double precision, tensor by tensor."""
    params = parameters(shapes=shapes)
    values = [p.detach().double() for p in params]
    means, squares = ([torch.zeros_like(value) for value in values] for _ in range(2))
    times, reach = [0] * len(params), largest(values)
    decay = options.pop("lamb_weight_decay", 0.01)
    for step in range(STEPS):
        for at, grad in enumerate(gradients(params, step)):
            if grad is not None:
                times[at] += 1
                wd = 0.0 if at in EXCLUDED else decay
                moments = means[at], squares[at], times[at]
                one_step(values[at], grad.double(), *moments, lr, wd, **options)
        reach = [max(pair) for pair in zip(reach, largest(values), strict=True)]
    return Trajectory(values, reach)


PATHS = [(False, 0), (None, 0), (None, 1 << 14)]
"""List operations, one fused kernel per tensor, and what such small tensors really take."""


@pytest.mark.parametrize("name", ["lamb_default", "lamb_exclude"])
@pytest.mark.parametrize(("fused", "small"), PATHS)
def test_the_trajectory_is_that_of_paddle(
    name: str, fused: bool | None, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "SMALL", small)
    data = json.loads((GOLDEN / f"{name}.json").read_text())
    params = {key: nn.Parameter(torch.tensor(v)) for key, v in data["initial_params"].items()}
    ends = tuple(data["hyperparameters"]["exclude_endswith"])
    excluded = tuple(at for at, key in enumerate(params) if key.endswith(ends))
    groups = [{"params": params.values(), "excluded": excluded}]
    optimizer = Lamb(groups, lr=0.01, eps=1e-6, fused=fused)
    for step, grads in enumerate(data["grads"]):
        for key, param in params.items():
            param.grad = torch.tensor(grads[key])
        optimizer.step()
        values = data["params_after_step"][step]
        states = data["optimizer_state_after_step"][step]
        for key, param in params.items():
            state = optimizer.state[param]
            assert_same([param.detach()], [torch.tensor(values[key])], rtol=1e-6)
            assert_same([state["exp_avg"]], [torch.tensor(states[f"{key}_moment1_0"])], rtol=1e-6)
            squares = torch.tensor(states[f"{key}_moment2_0"])
            # Theirs has the weight 1 - 0.999 in float32, which cancels out of the step.
            assert_same([state["exp_avg_sq"]], [squares], rtol=2e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("kind", OPTIONS)
def test_every_path_follows_the_formula(device: str, fused: bool | None, kind: str) -> None:
    found = train(Lamb, device=device, lr=0.05, fused=fused, **OPTIONS[kind])
    assert_same(found, reference(0.05, **OPTIONS[kind]), rtol=2e-6)


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
@pytest.mark.parametrize("fused", [None, False])
def test_a_step_waits_for_nothing_and_can_be_captured(fused: bool | None) -> None:
    eager, replayed = graph_and_eager(partial(Lamb, fused=fused), 0.05)
    assert_same(replayed, eager, rtol=1e-7)


@given(st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=3, max_size=6))
@settings(max_examples=25, deadline=None)
def test_any_shape_follows_the_formula(shapes: list[list[int]]) -> None:
    expected = reference(0.05, shapes=shapes, eps=1e-3)
    for fused, small in ((False, 0), (None, 0), (None, 500)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layers, "SMALL", small)
            found = train(Lamb, shapes=shapes, lr=0.05, fused=fused, eps=1e-3)
        assert_same(found, expected, rtol=1e-5)


def test_excluded_parameters_are_plain_adam() -> None:
    start = torch.randn(20)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    lamb = Lamb([{"params": [ours], "excluded": (0,)}], lr=0.1, weight_decay=0.01)
    adam = torch.optim.Adam([theirs], lr=0.1, weight_decay=0.01, fused=True)
    for _ in range(5):
        ours.grad = theirs.grad = torch.randn(20)
        lamb.step()
        adam.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_what_has_no_norm_moves_with_the_full_rate() -> None:
    zero, dead = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.full((2,), 2.0))
    zero.grad, dead.grad = torch.tensor([1.0, -2.0, 3.0]), torch.zeros(2)
    Lamb([zero, dead], lr=0.5).step()
    torch.testing.assert_close(zero.detach(), torch.tensor([-0.5, 0.5, -0.5]))
    # Only the decay is left of the step, and it is scaled to the norm of the weights.
    torch.testing.assert_close(dead.detach(), torch.full((2,), 1.0))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fused", [None, False])
def test_the_rate_may_be_a_tensor(device: str, fused: bool | None) -> None:
    lr = torch.tensor(0.05, device=device)
    found = train(Lamb, device=device, lr=lr, fused=fused)
    assert_same(found, reference(0.05), rtol=2e-6)


def test_half_precision_keeps_its_moments_in_single() -> None:
    param = nn.Parameter(torch.full((1000,), 30.0, dtype=torch.float16))
    param.grad = torch.full_like(param, 1e-3)  # its square is below float16
    optimizer = Lamb([param], lr=0.1)
    optimizer.step()
    square = optimizer.state[param]["exp_avg_sq"]
    torch.testing.assert_close(square, torch.full((1000,), 1e-9), rtol=1e-2, atol=0)
    assert param[0].item() == 27.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": -1.0}, "eps must be at least 0"),
        ({"betas": (0.9, 1.0)}, "betas must be at least 0 and below 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Lamb([nn.Parameter(torch.ones(1))], **options)


def job(dtype: torch.dtype = torch.float32) -> tuple[list[nn.Parameter], Lamb]:
    params = parameters(dtype=dtype)
    return params, Lamb([{"params": params, "excluded": EXCLUDED}], lr=0.05)


def advance(params: list[nn.Parameter], optimizer: Lamb, steps: range) -> None:
    for step in steps:
        for param, grad in zip(params, gradients(params, step), strict=True):
            param.grad = grad
        optimizer.step()


RESUME = """
import sys, torch
from tests.strategies.layerwise.test_lamb_optimizer import advance, job
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


def spread() -> list[Tensor]:
    """``train`` with parameters cut over two ranks, put together again."""
    mesh = init_device_mesh("cpu", (2,))
    whole = parameters(shapes=((6, 4), (5,), (3, 3)))
    places: list[list[Placement]] = [[Shard(0)], [Shard(0)], [Replicate()]]
    params = [
        nn.Parameter(distribute_tensor(p.detach(), mesh, place))
        for p, place in zip(whole, places, strict=True)
    ]
    optimizer = Lamb([{"params": params, "excluded": EXCLUDED}], lr=0.05)
    for step in range(STEPS):
        for param, grad, place in zip(params, gradients(whole, step), places, strict=True):
            param.grad = None if grad is None else distribute_tensor(grad, mesh, place)
        optimizer.step()
    return [param.full_tensor().detach().double() for param in params]  # type: ignore[attr-defined]


def test_norms_of_spread_parameters_are_those_of_the_whole() -> None:
    expected = reference(0.05, shapes=((6, 4), (5,), (3, 3)))
    for found in world(2).run(spread):
        assert_same(found, expected, rtol=2e-6)

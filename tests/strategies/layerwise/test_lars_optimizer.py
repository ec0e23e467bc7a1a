"""LARS: what it does that LAMB does not, and what is tried on it for both."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fleetx.optim.lars import Lars
from fleetx.strategies.layerwise import layers
from tests.strategies.layerwise.layers import DEVICES, assert_same
from tests.strategies.layerwise.rules import PATHS, advance, job, lars_step

GOLDEN = Path(__file__).parents[2] / "golden"


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


def test_the_norm_of_a_large_tensor_keeps_its_digits() -> None:
    param = nn.Parameter(torch.randn(2_000_003))
    param.grad = torch.randn_like(param)
    velocity = torch.zeros(param.shape, dtype=torch.float64)
    lars_step(param.detach().double(), param.grad.double(), velocity, 10.0, 0.0005)
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


def test_a_copy_and_a_loaded_state_share_nothing() -> None:
    params, optimizer = job("lars")
    advance(params, optimizer, range(2))
    others, other = job("lars")
    other.load_state_dict(optimizer.state_dict())
    velocity = other.state[others[0]]["velocity"].clone()
    copy.deepcopy(optimizer).step()
    advance(params, optimizer, range(2, 3))
    assert torch.equal(other.state[others[0]]["velocity"], velocity)


def test_gradients_that_come_and_go_find_their_parameters() -> None:
    first, second = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))
    optimizer = Lars([first, second], lr=1.0, momentum=0.5, lars_weight_decay=0.0)
    for moving, resting in ((first, second), (second, first), (first, second)):
        moving.grad, resting.grad = torch.ones_like(moving), None
        optimizer.step()
    assert first.tolist() == [-2.5] * 3
    assert second.tolist() == [-1.0] * 2


def test_the_state_of_another_rule_is_refused() -> None:
    params, optimizer = job("lars")
    state = torch.optim.SGD([{"params": params}], lr=0.1, momentum=0.9).state_dict()
    with pytest.raises(ValueError, match="not one of Lars: its groups have no 'lars_coeff'"):
        optimizer.load_state_dict(state)

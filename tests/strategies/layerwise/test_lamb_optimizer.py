"""LAMB: what it does that LARS does not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fleetx.optim.lamb import Lamb
from fleetx.strategies.layerwise import layers
from tests.strategies.layerwise.layers import assert_same
from tests.strategies.layerwise.rules import PATHS

GOLDEN = Path(__file__).parents[2] / "golden"


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

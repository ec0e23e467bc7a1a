"""Plain optimizers through the engine are Paddle's, decay and schedule included."""

from typing import Any

import pytest
import torch

from tests.strategies.paddle import check_given

MAKERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "momentum_nesterov": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, nesterov=True
    ),
    "momentum_l2decay": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, weight_decay=0.01
    ),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adam_l2decay": lambda parameters: torch.optim.Adam(parameters, lr=0.01, weight_decay=0.01),
}


@pytest.mark.parametrize("name", MAKERS)
def test_trajectories_are_those_of_paddle(name: str) -> None:
    check_given(name, MAKERS[name])

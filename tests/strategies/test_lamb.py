"""LAMB as a strategy: Paddle's trajectories, names, refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import PlanError
from fleetx.optim.lamb import Lamb
from fleetx.testing import world
from tests.engine.training import data, net, spread, weights
from tests.strategies.paddle import check_given, golden, start


@pytest.mark.parametrize("name", ["lamb_default", "lamb_exclude"])
def test_the_trajectory_is_that_of_paddle(name: str) -> None:
    exclude = golden(name)["hyperparameters"]["exclude_endswith"]
    check_given(
        name,
        lambda parameters: torch.optim.Adam(parameters, lr=0.01, eps=1e-6),
        lamb=True,
        lamb_configs={"lamb_weight_decay": 0.01, "exclude_from_weight_decay": exclude},
    )


def train(batch: int, steps: int = 6) -> Tensor:
    """Weights after some steps with this worker's part of each batch."""
    start(lamb=True, lamb_configs={"exclude_from_weight_decay": [".b_0"]})
    rank, size = fleet.worker_index(), fleet.worker_num()
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.Adam(model.parameters(), 0.05, eps=1e-3))
    inputs, targets = data()
    for step in range(steps):
        mine = torch.arange(step * batch, (step + 1) * batch)[rank::size]
        optimizer.minimize(F.cross_entropy(model(inputs[mine]), targets[mine]))
    if size > 1:
        assert spread(weights(model)) == 0
    return weights(model)


def test_two_workers_are_one_worker_with_the_whole_batch() -> None:
    (alone,) = world(1).run(train, 16)
    for together in world(2).run(train, 16):
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(alone, weights(net()), atol=0.01)


def built(optimizer: Any, **configs: Any) -> Any:
    start(lamb=True, lamb_configs=configs)
    model = fleet.distributed_model(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)))
    return fleet.distributed_optimizer(optimizer(model.parameters()))


@world(1)
def test_groups_keep_their_options() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        first, *rest = parameters
        groups = [{"params": [first], "lr": 0.5}, {"params": rest, "betas": (0.5, 0.6)}]
        return torch.optim.Adam(groups, lr=0.1, eps=1e-4, weight_decay=0.02, capturable=True)

    optimizer = built(make, exclude_from_weight_decay=["layer_norm"], lamb_weight_decay=0.3)
    first, second = optimizer.param_groups
    assert isinstance(optimizer._inner, Lamb)
    assert (first["lr"], first["betas"], first["excluded"]) == (0.5, (0.9, 0.999), ())
    assert (second["lr"], second["betas"], second["excluded"]) == (0.1, (0.5, 0.6), (1, 2))
    for group in (first, second):
        assert (group["eps"], group["weight_decay"]) == (1e-4, 0.02)
        assert (group["lamb_weight_decay"], group["fused"]) == (0.3, None)


REFUSED: list[tuple[Any, str]] = [
    (lambda p: torch.optim.SGD(p, momentum=0.9), "the optimizer is SGD, whose own rule would be"),
    (torch.optim.AdamW, "is AdamW, whose decoupled decay would act in addition"),
    (lambda p: torch.optim.Adam(p, amsgrad=True), "amsgrad=True, which strategy.lamb cannot keep"),
    (
        lambda p: torch.optim.Adam(p, weight_decay=0.1, decoupled_weight_decay=True),
        "decoupled_weight_decay=True, which strategy.lamb cannot keep",
    ),
]


@world(1)
@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_lamb_cannot_replace_is_refused(number: int) -> None:
    make, message = REFUSED[number]
    with pytest.raises(PlanError, match=message):
        built(make)


@world(1)
def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(PlanError, match=r"leaves nothing of strategy.lamb"):
        built(torch.optim.Adam, lamb_weight_decay=0)
    with pytest.raises(ValueError, match=r"lamb_configs\['exclude_from_weight_decay'\] has 'beta'"):
        built(torch.optim.Adam, exclude_from_weight_decay=["beta"])

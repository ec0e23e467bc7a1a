"""LARS as a strategy: Paddle's trajectories, names, schedules, refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import PlanError
from fleetx.optim.lars import Lars
from fleetx.testing import world
from tests.engine.training import data, net, spread, weights
from tests.strategies.paddle import check_given, check_two_workers, golden, start


def test_the_trajectory_is_that_of_paddle() -> None:
    numbers = golden("lars_default_exclude")["hyperparameters"]
    names = ("lars_coeff", "lars_weight_decay", "epsilon", "exclude_from_weight_decay")
    check_given(
        "lars_default_exclude",
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lars=True,
        lars_configs={name: numbers[name] for name in names},
    )


def test_two_workers_walk_the_trajectory_of_paddle() -> None:
    check_two_workers("dist_lars", **golden("dist_lars")["strategy"])


def train(batch: int, steps: int = 6) -> Tensor:
    """Weights after some steps with this worker's part of each batch."""
    start(lars=True, lars_configs={"lars_coeff": 0.1, "exclude_from_weight_decay": ["bias"]})
    rank, size = fleet.worker_index(), fleet.worker_num()
    model = fleet.distributed_model(net())
    inner = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(inner, lambda step: 1 / (1 + step))
    optimizer = fleet.distributed_optimizer(inner)
    inputs, targets = data()
    for step in range(steps):
        mine = torch.arange(step * batch, (step + 1) * batch)[rank::size]
        optimizer.minimize(F.cross_entropy(model(inputs[mine]), targets[mine]))
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == 1 / (1 + steps)
    if size > 1:
        assert spread(weights(model)) == 0
    return weights(model)


def test_two_workers_are_one_worker_with_the_whole_batch() -> None:
    (alone,) = world(1).run(train, 16)
    for together in world(2).run(train, 16):
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(alone, weights(net()), atol=0.01)


class Model(nn.Module):
    """Names that Paddle's patterns would miss or hit by accident if they were taken literally."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4))
        self.norm = nn.LayerNorm(4)
        self.recurrent = nn.GRU(4, 2)


def built(
    exclude: list[str], model: nn.Module | None = None, optimizer: Any = None, **configs: Any
) -> Any:
    """The optimizer that runs, and the names that it excludes."""
    start(lars=True, lars_configs={"exclude_from_weight_decay": exclude, **configs})
    model = fleet.distributed_model(model or Model())
    make = optimizer or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    inner = fleet.distributed_optimizer(make(model.parameters()))
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {names[group["params"][at]] for group in inner.param_groups for at in group["excluded"]}
    return inner, found


BATCH_NORM = {"backbone.1.weight", "backbone.1.bias"}
BIASES = {
    *("backbone.0.bias", "backbone.1.bias", "norm.bias"),
    *("recurrent.bias_ih_l0", "recurrent.bias_hh_l0"),
}


@world(1)
@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["batch_norm"], BATCH_NORM),
        (["layer_norm"], {"norm.weight", "norm.bias"}),
        ([".b_0"], BIASES),
        ([".b"], BIASES),  # and not all of the backbone
        (["batch_norm", ".b_0"], BATCH_NORM | BIASES),
        (["0.weight"], {"backbone.0.weight"}),
        (["weight_ih"], {"recurrent.weight_ih_l0"}),
        ([], set()),
    ],
)
def test_documented_patterns_mean_what_they_meant(patterns: list[str], expected: set[str]) -> None:
    _, found = built(patterns)
    assert found == expected


@world(1)
def test_a_pattern_without_effect_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'backbnoe', which matches no parameter.*'backbone'"):
        built(["backbnoe"])
    with pytest.raises(ValueError, match="'batch_norm', which matches no parameter") as error:
        built(["batch_norm"], model=nn.Linear(2, 2))
    assert str(error.value).count("'batch_norm'") == 1, "what is refused is not recommended"
    with pytest.raises(ValueError, match=r"'batchnorm', .* names are 'batch_norm'"):
        built(["batchnorm"], model=nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    with pytest.raises(ValueError, match="excludes every parameter"):
        built(["e"], model=nn.Sequential(nn.Linear(2, 2, bias=False)))


@world(1)
def test_groups_keep_their_options_and_their_number() -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        first, *rest = parameters
        groups = [{"params": [first], "lr": 0.5, "note": "mine"}, {"params": rest, "momentum": 0.3}]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.02, maximize=True)

    optimizer, found = built([".b"], optimizer=make, lars_coeff=0.25, epsilon=0.5)
    first, second = optimizer.param_groups
    assert found == BIASES
    assert (first["lr"], first["momentum"], first["note"]) == (0.5, 0.9, "mine")
    assert (second["lr"], second["momentum"]) == (0.1, 0.3)
    for group in (first, second):
        assert group["lars_coeff"] == 0.25
        assert group["epsilon"] == 0.5
        assert group["lars_weight_decay"] == 0.0005
        assert group["weight_decay"] == 0.02
        assert group["maximize"] is True
        assert group["fused"] is None


@world(1)
@pytest.mark.parametrize(
    ("flags", "fused"),
    [({"fused": True}, None), ({"foreach": True}, False), ({"fused": False}, False)],
)
def test_flags_of_speed_choose_the_path(flags: dict[str, bool], fused: bool | None) -> None:
    optimizer, _ = built([], optimizer=lambda p: torch.optim.SGD(p, lr=0.1, **flags))
    assert optimizer.param_groups[0]["fused"] is fused
    assert isinstance(optimizer._inner, Lars)


REFUSED: list[tuple[Any, str]] = [
    (torch.optim.Adam, "the optimizer is Adam, whose own rule would be lost; use"),
    (lambda p: torch.optim.SGD(p, momentum=0.9, nesterov=True), "nesterov=True, which strategy"),
    (lambda p: torch.optim.SGD(p, momentum=0.9, dampening=0.1), "dampening=0.1, which strategy"),
    (lambda p: torch.optim.SGD(p, differentiable=True), "differentiable=True, which strategy"),
    (
        lambda p: torch.optim.SGD([{"params": list(p), "nesterov": True, "momentum": 0.9}]),
        "nesterov=True, which strategy",
    ),
]


@world(1)
@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_lars_cannot_replace_is_refused(number: int) -> None:
    make, message = REFUSED[number]
    with pytest.raises(PlanError, match=message):
        built([], optimizer=make)


@world(1)
def test_a_decay_of_zero_would_be_plain_momentum() -> None:
    with pytest.raises(PlanError, match=r"leaves nothing of strategy.lars"):
        built([], lars_weight_decay=0)


@world(1)
def test_a_job_has_one_rule() -> None:
    start(lars=True, lamb=True)
    with pytest.raises(PlanError, match="both provide the rule"):
        fleet.distributed_model(Model())

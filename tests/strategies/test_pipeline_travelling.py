"""What travels between stages: views, numbers without gradients, values that nobody uses."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx.testing import world
from tests.strategies.test_pipeline_values import numbers, of, same, spread, start

MODES: list[dict[str, Any]] = [
    {"schedule_mode": "1F1B", "accumulate_steps": 4},
    {"schedule_mode": "F-then-B"},
    {"schedule_mode": "zero-bubble"},
]


class Twice(nn.Module):
    """Uses its weights twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x).tanh())


class Mixed(nn.Module):
    """Sends integers, a mask, a frozen value and a view over its stages; the loss needs some."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = Twice(), Twice(), Twice()
        self.fourth = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        order = x.sum(-1).argsort(1)
        positive, fixed = x > 0, x.detach() * 2
        first = self.first(x)
        second = self.second(first * positive)
        third = self.third(second + fixed)
        turned = third.flatten(1)
        return self.fourth(turned) + order.float() + first.detach().sum((1, 2))[:, None]


def trained(net: type[nn.Module], split: list[str], **configs: Any) -> None:
    """Two steps of a pipeline give what two steps of the plain model give."""
    x, y = numbers(8, 3, 4), numbers(8, 3, seed=5)
    start(split, **configs)
    model, plain = spread(of(net), nn.functional.mse_loss, sample=x), of(net)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.mse_loss(plain(x), y).backward()
        optimizer.step()
        model.train_batch((x, y))
    same(model, plain)


@world(2)
def test_values_with_and_without_gradients_travel_together() -> None:
    for configs in MODES:
        trained(Mixed, ["third"], **configs)


@world(2)
def test_middle_stages_may_send_views_and_use_a_weight_twice() -> None:
    for mode in ("interleaved", "zero-bubble"):
        cut = ["second", "third", "fourth"]
        trained(Mixed, cut, schedule_mode=mode, stages_per_rank=2)


class Picky(nn.Module):
    """Gives as many rows as a test says."""

    rows = 4

    def forward(self, x: Tensor) -> Tensor:
        return x[: self.rows]


class Uneven(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.picky, self.second = nn.Linear(4, 4), Picky(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.picky(self.first(x)))


@world(2)
def test_a_shape_that_changes_from_batch_to_batch_is_refused_by_all() -> None:
    start("second")
    net: Any = of(Uneven)
    model = spread(net, lambda outputs, _: outputs.mean(), sample=numbers(8, 4))
    data = numbers(8, 4), numbers(8, 4)
    model.train_batch(data)
    net.picky.rows = 3
    with pytest.raises((ValueError, RuntimeError), match=r"waits for a float32 .* \[4, 4\]"):
        model.train_batch(data)
    net.picky.rows = 4
    assert model.train_batch(data).isfinite()


@world(2)
def test_a_loss_of_many_numbers_is_refused_by_all() -> None:
    start("second")
    model = spread(of(Uneven), lambda outputs, _: outputs, sample=numbers(8, 4))
    with pytest.raises((ValueError, RuntimeError), match="begins at one number"):
        model.train_batch((numbers(8, 4), numbers(8, 4)))


def test_a_backward_that_is_not_split_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.pipeline = True
    strategy.pipeline_configs = {"split": ["layers.2"], "schedule_mode": "zero-bubble"}
    strategy.hybrid_configs = {"pp_degree": 2}
    for splits, said in ((True, False), (False, True)):
        monkeypatch.setattr("fleetx.strategies.pipeline.stage.SPLITS_BACKWARD", splits)
        text = strategy.explain(workers=2)
        assert ("At rest: pipeline_configs['schedule_mode'] = 'zero-bubble'" in text) is said
        assert "pipeline           changes" in text

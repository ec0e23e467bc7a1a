"""Losses that average over some targets alone are those of the whole batch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import roles
from fleetx.strategies.pipeline.followed_targets import FollowedTargets
from fleetx.testing import world
from tests.habits.both import said

Criterion = Callable[[Any, Any], Tensor]
CLASSES, SAMPLES, STEPS = 5, 16, 3
WEIGHTS = torch.tensor([0.1, 2.0, 0.5, 0.0, 1.0])


def start(stages: int, extras: dict[str, Any] | None = None, **configs: Any) -> None:
    strategy: Any = fleet.DistributedStrategy()
    strategy.pipeline = True
    strategy.pipeline_configs = {"accumulate_steps": 4, **configs}
    strategy.hybrid_configs = {"pp_degree": stages}
    for name, value in (extras or {}).items():
        setattr(strategy, name, value)
    roles.stop()  # models of an earlier job may still be there
    fleet.init(is_collective=True, strategy=strategy)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, CLASSES))


def data() -> tuple[Tensor, Tensor]:
    """Targets of which four micro-batches leave out 3, none, all and 1."""
    drawn = torch.Generator().manual_seed(7)
    targets = torch.randint(0, CLASSES, (SAMPLES,), generator=drawn)
    targets[[0, 1, 3, 8, 9, 10, 11, 13]] = -100
    return torch.randn(SAMPLES, 6, generator=drawn), targets


def plain(model: nn.Module, criterion: Criterion, given: tuple[Any, Any]) -> list[float]:
    inputs, targets = given
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(STEPS):
        loss = criterion(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def spread(model: nn.Module, criterion: Criterion) -> Any:
    found: Any = fleet.distributed_model(model, criterion=criterion)
    fleet.distributed_optimizer(torch.optim.SGD(found.parameters(), lr=0.1))
    return found


def compare(build: Callable[[], nn.Module], criterion: Criterion, given: tuple[Any, Any]) -> None:
    """The job that was started trains as plain torch does on whole batches."""
    alone = build()
    expected = plain(alone, criterion, given)
    model = spread(build(), criterion)
    losses = [float(model.train_batch(given)) for _ in range(STEPS)]
    assert losses == pytest.approx(expected, abs=2e-5)
    state = fleet.full_state_dict(model, everywhere=True)
    torch.testing.assert_close(state, dict(alone.state_dict()), rtol=0, atol=2e-5)


def ignoring(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets)


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, weight=WEIGHTS, label_smoothing=0.1)


def by_module(outputs: Tensor, targets: Tensor) -> Tensor:
    loss: Tensor = nn.NLLLoss(weight=WEIGHTS, ignore_index=-100)(outputs.log_softmax(-1), targets)
    return loss


def two_means(outputs: Tensor, targets: Tensor) -> Tensor:
    """As those of BERT, which count other targets."""
    first = F.cross_entropy(outputs, targets)
    return first + 0.5 * F.cross_entropy(outputs, targets.clamp(min=0), ignore_index=0)


def made_in_place(outputs: Tensor, targets: Tensor) -> Tensor:
    mine = targets.clone()
    mine[targets == 2] = -1
    mine.masked_fill_(targets < 0, -1)
    return F.cross_entropy(outputs, mine, ignore_index=-1)


def picked_out(outputs: Tensor, targets: Tensor) -> Tensor:
    counts = targets >= 0
    return F.cross_entropy(outputs[counts], targets[counts])


EXACT = (ignoring, weighted, by_module, two_means, made_in_place, picked_out)


@pytest.mark.parametrize("stages", [1, 2])
def test_means_over_some_targets_are_those_of_the_batch(stages: int) -> None:
    """They were means of the means of micro-batches, without a word."""
    for found in world(stages).run(said, partial(exact, stages)):
        assert not [one for one in found if "mean of the means" in one]


def exact(stages: int) -> None:
    for criterion in EXACT:
        start(stages, split=["2"] if stages == 2 else [])
        compare(net, criterion, data())


@world(2)
def test_whatever_the_schedule() -> None:
    schedules: list[dict[str, Any]] = [
        {"schedule_mode": "F-then-B", "split": ["2"]},
        {"schedule_mode": "zero-bubble", "split": ["2"]},
        {"schedule_mode": "interleaved", "split": ["1", "2", "3"]},
    ]
    for configs in schedules:
        start(2, **configs)
        compare(net, weighted, data())


@world(1)
def test_micro_batches_that_count_alike_are_as_they_were_to_the_last_bit() -> None:
    inputs, targets = data()
    targets = targets.clamp(min=0)
    targets[::4] = -100
    start(1)
    found = float(spread(net(), ignoring).train_batch((inputs, targets)))
    alone, total = net(), torch.zeros(())
    for x, y in zip(inputs.chunk(4), targets.chunk(4), strict=True):
        total += F.cross_entropy(alone(x), y).detach() / 4
    assert found == float(total)


def masked_by_hand(outputs: Tensor, targets: Tensor) -> Tensor:
    mask = (targets >= 0).float()
    each = F.cross_entropy(outputs, targets.clamp(min=0), reduction="none")
    return (each * mask).sum() / mask.sum()


def masked_rows(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs[targets >= 0].pow(2).mean()


def unsure(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets that the outputs choose."""
    chosen = targets.where(outputs.amax(-1) > 0.3, torch.full_like(targets, -100))
    return F.cross_entropy(outputs, chosen)


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="sum") / 4


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    mask = (targets >= 0).unsqueeze(1)
    return F.mse_loss(outputs * mask, torch.zeros_like(outputs))


TOLD: dict[Criterion, int] = {
    masked_by_hand: 1,
    masked_rows: 1,
    unsure: 1,
    summed: 0,
    squared: 0,
    ignoring: 0,
}


def train(criterion: Criterion) -> Callable[[], None]:
    def loop() -> None:
        start(1)
        model = spread(net(), criterion)
        inputs, targets = data()
        targets[8] = 1  # no micro-batch without any
        for _ in range(STEPS):
            model.train_batch((inputs, targets))

    return loop


@world(1)
def test_other_means_that_differ_are_told_of_once() -> None:
    for criterion, times in TOLD.items():
        found = [one for one in said(train(criterion)) if "mean of the means" in one]
        assert len(found) == times, criterion.__name__
        assert all("cross_entropy" in one and "divide a sum" in one for one in found)


class WithLoss(nn.Module):
    """As models of transformers are when they get labels."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = net()

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.inside(x), labels)


def with_labels(uneven: bool) -> Callable[[], None]:
    def loop() -> None:
        start(1)
        model = spread(WithLoss(), lambda loss, _: loss)
        inputs, targets = data()
        targets[8] = 1  # no micro-batch without any
        labels = targets if uneven else targets.clamp(min=0)
        model.train_batch(({"x": inputs, "labels": labels}, ()))

    return loop


@world(1)
def test_a_loss_that_the_model_computes_of_padded_labels_is_told_of() -> None:
    for uneven in (True, False):
        found = said(with_labels(uneven))
        told = [one for one in found if "labels that are -100 are not as many" in one]
        assert len(told) == uneven


def test_what_was_made_of_targets_is_made_of_others() -> None:
    first, second = torch.tensor([1, -1, 2]), torch.tensor([-1, -1, 5])
    followed = FollowedTargets({"words": first})
    mask = first < 0
    followed.follow(Tensor.lt, (first, 0), {}, mask)
    mine = first.masked_fill(mask, 9)
    followed.follow(Tensor.masked_fill, (first, mask, 9), {}, mine)
    (found,) = followed.made_of({"words": second}, [mine])
    assert found.tolist() == [9, 9, 5]
    outputs = torch.randn(3)
    followed.follow(Tensor.mul, (first, outputs), {}, foreign := first * outputs)
    assert not followed.knows(foreign)
    mine[outputs > 0] = 0
    followed.follow(Tensor.__setitem__, (mine, outputs > 0, 0), {}, None)
    assert not followed.knows(mine)

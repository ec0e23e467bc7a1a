"""``train_batch`` and ``eval_batch`` without a pipeline: one script for all layouts."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx.testing import world
from tests.engine.training import data, net


def begin(strategy: fleet.DistributedStrategy | None = None, **given: Any) -> tuple[Any, Any]:
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(net(), **({"criterion": F.cross_entropy} | given))
    return model, fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))


@world(2)
def test_a_batch_is_the_three_lines() -> None:
    model, _ = begin()
    inputs, targets = (part.chunk(2)[fleet.rank()] for part in data(16))
    losses = [float(model.train_batch((inputs, targets))) for _ in range(3)]
    other, optimizer = begin()
    for loss in losses:
        found = F.cross_entropy(other(inputs), targets)
        optimizer.minimize(found)
        assert float(found.detach()) == pytest.approx(loss)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@world(1)
def test_evaluation_leaves_no_trace() -> None:
    model, _ = begin()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    inputs, targets = data(8)
    loss = model.eval_batch((inputs, targets))
    assert not loss.requires_grad
    torch.testing.assert_close(loss, F.cross_entropy(net()(inputs), targets).detach())
    assert model.eval_batch((inputs, targets), compute_loss=False).shape == (8, 3)
    assert [module.training for module in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.layer(left - right)


class Tree(Two):
    def forward(self, tree: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return self.layer(tree["left"] - tree["right"])


class Pair(Two):
    def forward(self, pair: list[Tensor]) -> Tensor:  # type: ignore[override]
        return self.layer(pair[0] - pair[1])


class Open(Two):
    def forward(self, left: Tensor, **others: Tensor) -> Tensor:  # type: ignore[override]
        return self.layer(left - others["right"])


@world(1)
def test_tuples_lists_and_dicts_are_arguments() -> None:
    fleet.init(is_collective=True)
    left, right = torch.randn(2, 4, 3).unbind()
    named = {"left": left, "right": right}
    listed, losses = [left, right], []
    for kind, given in (
        *((Two, (left, right)), (Two, listed), (Two, named)),
        *((Tree, named), (Pair, listed), (Open, named)),
    ):
        torch.manual_seed(0)
        model: Any = fleet.distributed_model(kind(), criterion=F.mse_loss)
        fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        losses.append(float(model.train_batch((given, torch.zeros(4, 1)))))
    assert losses == [losses[0]] * 6


@world(1)
def test_what_is_missing_is_named() -> None:
    fleet.init(is_collective=True)
    model: Any = fleet.distributed_model(net())
    with pytest.raises(RuntimeError, match="distributed_optimizer"):
        model.train_batch(data(8))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(fleet.PlanError, match=r"distributed_model\(model, criterion"):
        model.train_batch(data(8))
    with pytest.raises(fleet.PlanError, match="criterion"):
        model.eval_batch(data(8))
    with pytest.raises(ValueError, match="one pair"):
        model.train_batch(data(8)[0])
    other, _ = begin()
    with pytest.raises(ValueError, match="another model"):
        other.train_batch(data(8), optimizer)


@world(1)
def test_a_copy_belongs_to_no_job_and_a_class_keeps_its_own_call() -> None:
    model, _ = begin()
    copied = copy.deepcopy(model)
    with pytest.raises(RuntimeError, match="copy of a distributed model"):
        copied.train_batch(data(8))

    class Own(nn.Linear):
        def train_batch(self) -> str:
            return "own"

    own: Any = fleet.distributed_model(Own(2, 2))
    assert own.train_batch() == "own"


@world(2)
def test_weights_travel_whole_and_back() -> None:
    model, _ = begin()
    state = fleet.full_state_dict(model)
    assert list(state) == (list(net().state_dict()) if fleet.rank() == 0 else [])
    wanted = net(seed=5).state_dict()
    fleet.load_full_state_dict(model, wanted)
    everywhere = fleet.full_state_dict(model, everywhere=True)
    assert all(torch.equal(everywhere[name], wanted[name]) for name in wanted)
    with pytest.raises(ValueError, match=r"lacks \['0.bias'\]"):
        fleet.load_full_state_dict(model, {n: v for n, v in wanted.items() if n != "0.bias"})
    with pytest.raises(ValueError, match="shape"):
        fleet.load_full_state_dict(model, wanted | {"0.bias": torch.zeros(3)})
    with pytest.raises(fleet.PlanError, match="not distributed"):
        fleet.full_state_dict(net())


@world(4)
def test_the_loader_deals_by_the_data_axis() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.pipeline = True
    strategy.pipeline_configs = {"split": ["2"]}
    fleet.init(is_collective=True, strategy=strategy)
    assert (fleet.data_index(), fleet.data_num()) == (fleet.rank() % 2, 2)
    numbers: Any = list(range(16))
    loader: Any = torch.utils.data.DataLoader(numbers, batch_size=4)
    mine = [int(x) for batch in fleet.distributed_loader(loader) for x in batch]
    everyone = fleet.util.all_gather(mine)
    assert everyone[0] == everyone[2] != everyone[1] == everyone[3]
    assert sorted(everyone[0] + everyone[1]) == list(range(16))


@world(2)
def test_data_dealt_by_another_plan_is_refused() -> None:
    fleet.init(is_collective=True)
    numbers: Any = list(range(16))
    loader: Any = torch.utils.data.DataLoader(numbers, batch_size=4)
    fleet.distributed_loader(loader)
    strategy = fleet.DistributedStrategy()
    strategy.pipeline = True
    strategy.pipeline_configs = {"split": ["2"]}
    fleet.init(is_collective=True, strategy=strategy)
    with pytest.raises(fleet.PlanError, match="among 2 workers"):
        fleet.distributed_model(net())

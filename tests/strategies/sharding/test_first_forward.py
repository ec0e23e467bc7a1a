"""A look at the validation set before training, which trainers do to find mistakes early."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx.testing import world


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(8, 6), torch.randn(8, 3)


def looked_and_trained(stage: int, anchors: list[str], whole: bool, quiet: bool) -> list[float]:
    strategy = fleet.DistributedStrategy()
    strategy.sharding = True
    strategy.sharding_configs = {"stage": stage, "segment_anchors": anchors}
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(net())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    share = slice(fleet.worker_index(), None, 2)
    found = []
    for _ in range(3):
        with torch.inference_mode(quiet):
            found.append(float((model if whole else model[0])(inputs).sum()))
        F.mse_loss(model(inputs[share]), targets[share]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize(("whole", "quiet"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_evaluation_before_training(stage: int, whole: bool, quiet: bool) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = data()
    wanted = []
    for _ in range(3):
        with torch.inference_mode():
            wanted.append(float((model if whole else model[0])(inputs).sum()))
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    for found in world(2).run(looked_and_trained, stage, ["0"], whole, quiet):
        assert found == pytest.approx(wanted, rel=1e-4)

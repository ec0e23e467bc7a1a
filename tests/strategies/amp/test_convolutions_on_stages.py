"""amp looks at convolutions; under a pipeline those of other stages are there without weights."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import fleetx as fleet
from fleetx import roles
from fleetx.testing import world


def agrees_on_two_stages(model: nn.Module) -> None:
    """The first loss of a pipeline with amp is that of torch's autocast."""
    images, labels = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
    with torch.autocast("cpu", torch.bfloat16):
        alone = functional.cross_entropy(model(images).float(), labels).item()
    strategy = fleet.DistributedStrategy()
    strategy.amp, strategy.amp_configs = True, {"dtype": "bfloat16"}
    strategy.pipeline = True
    strategy.pipeline_configs = {"micro_batch_size": 4, "schedule_mode": "F-then-B"}
    strategy.hybrid_configs = {"pp_degree": 2}
    roles.stop()
    fleet.init(is_collective=True, strategy=strategy)
    cut: Any = fleet.distributed_model(model, criterion=functional.cross_entropy, sample=images)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(cut.parameters(), lr=0.1))
    assert float(cut.train_batch([images, labels], optimizer)) == pytest.approx(alone, rel=1e-4)


@world(2)
def test_convolutions_of_other_stages_are_passed() -> None:
    torch.manual_seed(0)
    convolutions = nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU()
    agrees_on_two_stages(nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(512, 10)))


@pytest.mark.rare
@world(2)
def test_a_resnet_of_torchvision_on_two_stages() -> None:
    from tests.libraries import torchvision

    torch.manual_seed(0)
    agrees_on_two_stages(torchvision.models.resnet18(num_classes=10))

"""Stages with more parameters than others, next to sharding and tensor parallel."""

from typing import Any

import torch
from torch.nn import functional

import fleetx as fleet
from fleetx.testing import world
from tests.libraries import torchvision

WIDTH, CLASSES, STEPS = 16, 8, 2
LAYOUT: dict[str, Any] = {
    "pipeline": True,
    "pipeline_configs": {"split": ["3"], "accumulate_steps": 2},
    "sharding": True,
    "sharding_configs": {"stage": 1, "sharding_degree": 2},
    "tensor_parallel": True,
    "tensor_parallel_configs": {
        "tensor_parallel_degree": 2,
        "column": ["0", "3"],
        "row": ["6"],
    },
}


def losses(layout: dict[str, Any]) -> list[float]:
    """Of a few updates; both shares of the data see the same samples."""
    strategy: Any = fleet.DistributedStrategy()
    for name, value in layout.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    net = torchvision.ops.MLP(WIDTH, [WIDTH, WIDTH, WIDTH, CLASSES], inplace=False)
    inputs, targets = torch.randn(4, WIDTH), torch.randint(CLASSES, (4,))
    model: Any = fleet.distributed_model(net, criterion=functional.cross_entropy, sample=inputs)
    optimizer = fleet.distributed_optimizer(torch.optim.AdamW(model.parameters(), lr=0.01))
    return [float(model.train_batch([inputs, targets], optimizer)) for _ in range(STEPS)]


def test_one_layer_before_and_three_behind() -> None:
    """Whatever a worker looks at while it lays out its stage, no other stage waits for it."""
    (alone,) = world(1).run(losses, {})
    for found in world(8).run(losses, LAYOUT):
        torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6)

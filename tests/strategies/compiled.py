"""Trains models that nobody here wrote, compiled, in layouts of several workers."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

import fleetx as fleet
from fleetx import roles
from tests.libraries import torchvision
from tests.strategies.pipeline import strangers

STEPS = 3
MADE: list[fx.GraphModule] = []
"""Every graph that was compiled in this process."""


def _count(module: fx.GraphModule, inputs: Any) -> Any:
    MADE.append(module)
    return torch._dynamo.lookup_backend("aot_eager")(module, inputs)


COUNTING = "fleetx_count"
torch._dynamo.register_backend(_count, name=COUNTING)


@dataclass(frozen=True)
class Trained:
    """What one worker saw."""

    losses: list[float]
    made: list[int]
    """Graphs of the model that were compiled in each step."""
    of_criterion: int
    """Those of the criterion, in all steps."""


Batch = tuple[dict[str, Tensor], Tensor]


def _resnet() -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [2, 2, 2, 2])


def _pictures() -> Batch:
    drawn = torch.Generator().manual_seed(2)
    images = torch.randn(8, 3, 32, 32, generator=drawn)
    return {"x": images}, torch.randint(0, 10, (8,), generator=drawn)


def _made(name: str) -> tuple[nn.Module, Batch]:
    if name == "resnet":
        return _resnet(), _pictures()
    return strangers.built(name), strangers.batch(name)


def trained(name: str, settings: dict[str, Any], backend: str = "") -> Trained:
    """Train a model of another library under a strategy; compiled if there is a backend."""
    torch._dynamo.reset()
    roles.stop()  # models of an earlier job may still be there
    strategy: Any = fleet.DistributedStrategy()
    for option, value in settings.items():
        setattr(strategy, option, value)
    if backend:
        strategy.compile = True
        strategy.compile_configs = {"backend": backend}
    fleet.init(is_collective=True, strategy=strategy)
    plain, (inputs, targets) = _made(name)
    rows = {key: value[:2] for key, value in inputs.items()}
    model: Any = fleet.distributed_model(plain, criterion=strangers.loss, sample=rows)
    fleet.distributed_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3))
    losses, made, of_criterion = list[float](), list[int](), 0
    for _ in range(STEPS):
        MADE.clear()
        losses.append(float(model.train_batch((inputs, targets))))
        criteria = sum("cross_entropy" in str(module.graph) for module in MADE)
        made.append(len(MADE) - criteria)
        of_criterion += criteria
    return Trained(losses, made, of_criterion)

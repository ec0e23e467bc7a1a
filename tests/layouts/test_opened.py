"""A pipeline may be cut inside a submodule, and then other strategies leave its forward alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx import PlanError
from fleetx.testing import world

STEPS = 3
SIZE = 8


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((SIZE,), 0.9))
        self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.scale
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.encoder, self.head = nn.Linear(SIZE, SIZE), Encoder(), nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.stem(x)))


def build() -> Net:
    torch.manual_seed(0)
    return Net()


def batch() -> tuple[Tensor, Tensor]:
    inputs, targets = torch.randn(2, 8, SIZE, generator=torch.Generator().manual_seed(1))
    return inputs, targets


def paired() -> nn.Module:
    """Two layers that belong together, and one that stands alone."""
    torch.manual_seed(0)
    pair = nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE))
    return nn.Sequential(pair, nn.Tanh(), nn.Linear(SIZE, SIZE))


def plain(build: Callable[[], nn.Module] = build) -> list[float]:
    model, (inputs, targets) = build(), batch()
    update, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for _ in range(STEPS):
        update.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        update.step()
        losses.append(loss.item())
    return losses


def trained(flags: dict[str, Any], build: Callable[[], nn.Module] = build) -> list[float]:
    strategy: Any = fleet.DistributedStrategy()
    strategy.pipeline = True
    strategy.pipeline_configs = {"split": ["encoder.layers.2"], "accumulate_steps": 2}
    for name, value in flags.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    model: Any = fleet.distributed_model(build(), criterion=F.mse_loss, sample=batch()[0][:2])
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    assert optimizer.param_groups
    inputs, targets = batch()
    return [float(model.train_batch((inputs, targets))) for _ in range(STEPS)]


COMPANY: list[dict[str, Any]] = [
    {},
    {"sharding": True},
    {"sharding": True, "sharding_configs": {"segment_anchors": ["encoder"]}},
    {"recompute": True, "recompute_configs": {"checkpoints": ["encoder*"]}},
    {
        "tensor_parallel": True,
        "tensor_parallel_configs": {
            "column": ["encoder.layers.0", "encoder.layers.2"],
            "row": ["encoder.layers.1", "encoder.layers.3"],
        },
    },
    {
        "tensor_parallel": True,
        "tensor_parallel_configs": {"column": ["encoder.layers.1"], "row": ["encoder.layers.2"]},
    },
]


@pytest.mark.parametrize("flags", COMPANY, ids=lambda flags: "+".join(flags) or "alone")
def test_what_is_inside_trains_as_before(flags: dict[str, Any]) -> None:
    for losses in world(4).run(trained, flags):
        assert losses == pytest.approx(plain(), abs=1e-6)


def test_the_opened_module_cannot_be_replayed() -> None:
    with pytest.raises(PlanError, match=r"'encoder', whose inside .* 'encoder\.\*'"):
        world(4).run(
            trained, {"recompute": True, "recompute_configs": {"checkpoints": ["encoder"]}}
        )


def test_a_stage_of_which_a_plan_cuts_nothing() -> None:
    """As the middle stages of a GPT-2, of which plans cut the words alone."""
    # The pair of layers that the plan finds is in the first stage.
    flags = {
        "tensor_parallel": True,
        "tensor_parallel_configs": {"plan": "mlp"},
        "pipeline_configs": {"split": ["2"], "accumulate_steps": 2},
    }
    for losses in world(4).run(trained, flags, paired):
        assert losses == pytest.approx(plain(paired), abs=1e-6)


def test_a_plan_that_cuts_nothing_of_any_stage_is_refused() -> None:
    flags = {"tensor_parallel": True, "tensor_parallel_configs": {"plan": "transformer"}}
    with pytest.raises(PlanError, match="cuts nothing of this model"):
        world(4).run(trained, flags)

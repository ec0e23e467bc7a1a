"""Data parallel: Paddle's trajectories, and options whose effect is counted."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F

import fleetx as fleet
from fleetx.testing import world
from tests.engine.training import data, net, spread, weights

GOLDEN = Path(__file__).parent.parent / "golden"


def follow(golden: dict[str, Any]) -> list[tuple[float, Tensor, Tensor]]:
    """Loss, weight and bias after every step on this worker's part of Paddle's data."""
    fleet.init(is_collective=True)
    rank = fleet.worker_index()
    model = nn.Linear(3, 1)
    model.weight.data = torch.tensor(golden["w0"]).T.contiguous()
    model.bias.data = torch.tensor(golden["b0"])
    fleet.distributed_model(model)
    options = golden["optimizer"]
    optimizer = fleet.distributed_optimizer(
        torch.optim.SGD(model.parameters(), options["lr"], momentum=options.get("momentum", 0.0))
    )
    found = []
    for x, y in zip(golden["x"][rank], golden["y"][rank], strict=True):
        loss = F.mse_loss(model(torch.tensor(x)), torch.tensor(y))
        optimizer.minimize(loss)
        found.append((float(loss), model.weight.detach().T.clone(), model.bias.detach().clone()))
    return found


@pytest.mark.parametrize("name", ["dist_dp_sgd", "dist_dp_momentum"])
def test_trajectories_are_those_of_paddle(name: str) -> None:
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    for theirs, ours in zip(golden["ranks"], world(2).run(follow, golden), strict=True):
        assert len(theirs) == len(ours) > 5
        for row, (loss, weight, bias) in zip(theirs, ours, strict=True):
            assert loss == pytest.approx(row["local_loss"], rel=1e-6)
            torch.testing.assert_close(weight, torch.tensor(row["w"]), rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(bias, torch.tensor(row["b"]), rtol=1e-6, atol=1e-6)


def all_reduces(settings: dict[str, Any], width: int) -> int:
    """How many all-reduces one step takes, after DDP has settled its buckets."""
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    model = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1))
    fleet.distributed_model(model)
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        with CommDebugMode() as counted:
            optimizer.minimize(model(torch.ones(2, width, requires_grad=True)).sum())
    counts = {str(kind): count for kind, count in counted.get_comm_counts().items()}
    return counts["c10d.allreduce_"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 1),
        ({"fuse_grad_size_in_MB": 1}, 2),  # two layers of 1 MiB fill one bucket each
        ({"fuse_all_reduce_ops": False}, 6),  # one per tensor
    ],
)
def test_fusion_decides_the_number_of_all_reduces(settings: dict[str, Any], expected: int) -> None:
    assert world(2).run(all_reduces, settings, width=512) == [expected] * 2


class Forked(nn.Module):
    """Each batch leaves one of two layers unused."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor, left: bool) -> Tensor:
        return self.left(x) if left else self.right(x)


@world(2)
@pytest.mark.parametrize("found", [True, False])
def test_find_unused_parameters_is_in_force(found: bool) -> None:
    strategy = fleet.DistributedStrategy()
    strategy.find_unused_parameters = found
    fleet.init(is_collective=True, strategy=strategy)
    model = fleet.distributed_model(Forked())
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs, targets = data()
    mine = slice(fleet.worker_index(), None, 2)

    def run() -> None:
        for step in range(4):
            output = model(inputs[mine], left=step % 2 == 0)
            optimizer.minimize(F.cross_entropy(output, targets[mine]))

    if found:
        run()
        assert spread(weights(model)) == 0
    else:
        with pytest.raises(RuntimeError, match="parameters that were not used"):
            run()


@world(2)
def test_tools_that_follow_the_module_tree_see_the_model_once() -> None:
    fleet.init(is_collective=True)
    model = fleet.distributed_model(net())
    assert [name for name, _ in model.named_modules()] == [n for n, _ in net().named_modules()]
    with CommDebugMode():
        model(torch.ones(2, 6))

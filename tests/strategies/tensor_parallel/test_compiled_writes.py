"""Code of cut layers that writes to parts of tensors: right, or refused, and never lost."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

import fleetx as fleet
from fleetx.testing import world

Write = Callable[[Tensor], object]


class Block(nn.Module):
    """Writes to what its cut layer returns."""

    def __init__(self, write: Write) -> None:
        super().__init__()
        self.up, self.down, self.write = nn.Linear(16, 32), nn.Linear(32, 16), write

    @override
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x) * 1.0
        self.write(hidden)
        found: Tensor = x + self.down(hidden.tanh())
        return found


def moved(x: Tensor) -> None:
    x[..., :8].mul_(2)


def activated(x: Tensor) -> None:
    functional.relu(x[..., ::2], inplace=True)


def added(x: Tensor) -> None:
    x[..., :8] += 1


def assigned(x: Tensor) -> None:
    x[..., :8] = x[..., 8:16] * 2


def masked(x: Tensor) -> None:
    x[x > 0] = 0.5


def whole(x: Tensor) -> None:
    x.mul_(2).add_(1)


def rows(x: Tensor) -> None:
    x[0].mul_(2)


class Net(nn.Sequential):
    """Writes to what its blocks return, outside of them."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        first, second, last = self
        x = first(x)
        x += 1
        x[:, :3].mul_(2)
        found: Tensor = last(second(x))
        return found


def trained(write: Write, *, compiled: bool, fullgraph: bool = False) -> list[float]:
    torch._dynamo.reset()
    strategy = fleet.DistributedStrategy()
    strategy.tensor_parallel = True
    strategy.tensor_parallel_configs = {
        "tensor_parallel_degree": 2,
        "column": ["*.up"],
        "row": ["*.down"],
    }
    if compiled:
        strategy.compile = True
        strategy.compile_configs = {"backend": "aot_eager", "fullgraph": fullgraph}
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    net = Net(Block(write), Block(write), nn.Linear(16, 4))
    model = fleet.distributed_model(net, criterion=functional.cross_entropy)
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    return [float(model.train_batch([x, y])) for _ in range(3)]


@pytest.mark.parametrize("write", [whole, rows, assigned, masked])
def test_what_code_can_write_is_written(write: Write) -> None:
    ranks = world(2)
    ours = ranks.run(trained, write, compiled=True, fullgraph=True)
    usual = ranks.run(trained, write, compiled=False)
    for mine, expected in zip(ours, usual, strict=True):
        assert mine == pytest.approx(expected, rel=1e-5)


def refused(write: Write) -> None:
    with pytest.raises(ValueError, match=r"strategy.compile cannot make code of a write to a part"):
        trained(write, compiled=True)


@pytest.mark.parametrize("write", [moved, activated, added])
def test_what_code_would_lose_is_refused(write: Write) -> None:
    world(2).run(refused, write)

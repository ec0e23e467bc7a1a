"""Code of regions with cut layers: what it does to parts of tensors is right, or refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

import fleetx as fleet
from fleetx.testing import world
from tests.libraries import timm

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


def of_swin(compiled: bool) -> float:
    """The loss of a batch, of a model whose attention splits what a layer makes in three."""
    torch._dynamo.reset()
    strategy = fleet.DistributedStrategy()
    strategy.tensor_parallel = True
    strategy.tensor_parallel_configs = {"tensor_parallel_degree": 2, "plan": "transformer"}
    if compiled:
        strategy.compile = True
        strategy.compile_configs = {"backend": "aot_eager"}
    fleet.init(is_collective=True, strategy=strategy)
    torch.manual_seed(0)
    net = timm.create_model(
        "swin_tiny_patch4_window7_224",
        num_classes=5,
        embed_dim=24,
        depths=(1, 1),
        num_heads=(2, 4),
        img_size=56,
        drop_path_rate=0.0,
    )
    model = fleet.distributed_model(net, criterion=functional.cross_entropy)
    fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    return float(model.train_batch([torch.randn(2, 3, 56, 56), torch.tensor([1, 3])]))


def swin_refused() -> None:
    with pytest.raises(ValueError, match=r"strategy.compile cannot make code of an operation that"):
        of_swin(True)


def test_what_code_cannot_split_is_refused() -> None:
    one, other = world(2).run(of_swin, False)
    assert one == other
    world(2).run(swin_refused)

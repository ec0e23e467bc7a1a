"""Small jobs that the tests of the engine train and compare."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import fleetx as fleet

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)
    )


def data(samples: int = 96) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(samples, 6, generator=generator)
    return inputs, torch.randint(0, 3, (samples,), generator=generator)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()


def plain(name: str, batch: int, steps: int = 12) -> Tensor:
    """The weights after training in one process, without fleetx."""
    model = net()
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    inputs, targets = data()
    for step in range(steps):
        at = torch.arange(step * batch, (step + 1) * batch) % len(inputs)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[at]), targets[at]).backward()
        optimizer.step()
    return weights(model)


def distributed(name: str, batch: int, steps: int = 12, how: str = "minimize") -> Tensor:
    """The weights after training on all workers, each with its share of every global batch."""
    fleet.init(is_collective=True)
    rank, size = fleet.worker_index(), fleet.worker_num()
    # Every worker starts from other weights; distributed_model() makes them rank 0's.
    model = fleet.distributed_model(net(seed=rank))
    optimizer = fleet.distributed_optimizer(OPTIMIZERS[name](list(model.parameters())))
    inputs, targets = data()
    for step in range(steps):
        at = torch.arange(step * batch * size, (step + 1) * batch * size) % len(inputs)
        mine = at[rank::size]
        LOOPS[how](model, optimizer, inputs[mine], targets[mine])
    return weights(model)


def _minimize(
    model: nn.Module, optimizer: fleet.DistributedOptimizer, x: Tensor, y: Tensor
) -> None:
    optimizer.minimize(F.cross_entropy(model(x), y))


def _three_lines(
    model: nn.Module, optimizer: fleet.DistributedOptimizer, x: Tensor, y: Tensor
) -> None:
    optimizer.backward(F.cross_entropy(model(x), y))
    optimizer.step()
    optimizer.clear_grad()


def _as_in_torch(
    model: nn.Module, optimizer: fleet.DistributedOptimizer, x: Tensor, y: Tensor
) -> None:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _closure(model: nn.Module, optimizer: fleet.DistributedOptimizer, x: Tensor, y: Tensor) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    assert optimizer.step(closure) is not None


LOOPS = {
    "minimize": _minimize,
    "three lines": _three_lines,
    "as in torch": _as_in_torch,
    "closure": _closure,
}


def spread(vector: Tensor) -> float:
    """How far the workers are apart."""
    everyone = [torch.empty_like(vector) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, vector)
    return max(float((other - vector).abs().max()) for other in everyone)

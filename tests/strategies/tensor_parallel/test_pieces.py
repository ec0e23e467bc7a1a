"""Pieces of tensors that ranks share, some of which nobody uses, before layers that are cut."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.nn import functional as F

from fleetx.strategies.tensor_parallel.regions import Border
from fleetx.testing import world

Layer = Callable[[Tensor, Tensor], Tensor]


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def unpacked(x: Tensor, weight: Tensor) -> Tensor:
    used, _ = x.chunk(2, -1)
    return used @ weight


LAYERS: dict[str, Layer] = {
    "chunk": unpacked,
    "gates": lambda x, w: (F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]) @ w,
    "split": lambda x, w: x.split(4, dim=-1)[1] @ w,
    "sizes": lambda x, w: torch.split(x, [4, 4], -1)[0] @ w,
    "named": lambda x, w: torch.chunk(x, chunks=2, dim=1)[1] @ w,
    "tensor_split": lambda x, w: torch.tensor_split(x, 2, dim=-1)[1] @ w,
    "unbind": lambda x, w: x.view(3, 2, 4).unbind(1)[1] @ w,
    "loop": lambda x, w: next(iter(x.view(3, 2, 4).transpose(0, 1))) @ w,
}


def moved(x: Tensor, weight: Tensor, run: Callable[[Tensor], Tensor]) -> list[Tensor]:
    found = run(x)
    (found * numbers(*found.shape)).sum().backward()
    assert x.grad is not None
    assert weight.grad is not None
    grad = weight.grad
    return [found, x.grad, grad.full_tensor() if isinstance(grad, DTensor) else grad]


@pytest.mark.parametrize("name", LAYERS)
@world(2)
def test_gradients_are_those_of_one_process(name: str) -> None:
    layer, mesh = LAYERS[name], init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    plain, weight = (one.requires_grad_() for one in (numbers(3, 8), numbers(4, 6)))
    usual = moved(plain, weight, lambda x: layer(x, weight))
    places: list[Placement] = [Replicate(), Shard(1)]
    for before in places:
        for cut in (Shard(0), Shard(1)):
            spread = distribute_tensor(numbers(4, 6), mesh, [cut]).requires_grad_()

            def inside(x: Tensor, before: Placement = before, w: Tensor = spread) -> Tensor:
                assert isinstance(x, DTensor)
                return layer(x.redistribute(placements=[before]), w)

            x = numbers(3, 8).requires_grad_()
            torch.testing.assert_close(moved(x, spread, Border(mesh).around(inside)), usual)

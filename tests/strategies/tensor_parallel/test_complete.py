"""What torch cannot compute from parts, or computes wrongly, is computed as without ranks."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from fleetx.strategies.tensor_parallel.regions import Border
from fleetx.testing import world

Function = Callable[[Tensor], Tensor]
KERNEL = torch.linspace(-1, 1, 6).view(1, 2, 3)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


CASES: dict[str, tuple[Function, tuple[int, ...]]] = {
    "a running sum, counted from the end": (lambda x: x.cumsum(-1), (3, 8)),
    "a running sum": (lambda x: torch.cumsum(x, 1), (3, 8)),
    "a running product": (lambda x: x.sigmoid().cumprod(-1), (3, 8)),
    "a mean of unequal parts": (lambda x: functional.mse_loss(x, x.detach() * 2), (4, 5)),
    "another mean": (lambda x: functional.smooth_l1_loss(x, x.detach() + 3), (4, 5)),
    "a mean of logits": (
        lambda x: functional.binary_cross_entropy_with_logits(x, x.detach().sigmoid()),
        (4, 5),
    ),
    "the largest": (lambda x: x.amax(-1), (3, 8)),
    "windows over an edge": (
        lambda x: functional.conv1d(x.view(3, 2, 8).transpose(0, 1).transpose(0, 1), KERNEL),
        (3, 16),
    ),
    "windows with strides": (
        lambda x: functional.conv1d(x.unsqueeze(1), KERNEL[:, :1], stride=2, padding=2),
        (3, 8),
    ),
    "windows that are averaged": (
        lambda x: functional.avg_pool1d(x.unsqueeze(1), 3, 2, 1),
        (3, 8),
    ),
    "groups": (lambda x: functional.group_norm(x, 4), (3, 8)),
    "rows": (lambda x: functional.rms_norm(x, (8,)), (3, 8)),
    "slopes": (lambda x: functional.prelu(x, torch.tensor([0.3])), (3, 8)),
    "hardswish": (functional.hardswish, (3, 8)),
    "distances": (lambda x: torch.cdist(x, x * 2), (3, 8)),
    "some of the rows": (lambda x: x.gather(0, torch.tensor([[2, 0], [1, 1]])), (3, 8)),
    "one of the columns": (lambda x: x.view(3, 2, 4).select(1, 1), (3, 8)),
    "one of the rows": (lambda x: torch.select(x, 0, 1), (3, 8)),
    "a product": (lambda x: x.prod(-1), (3, 8)),
    "numbers where a mask is true": (lambda x: x[x > 0], (3, 8)),
}


@pytest.mark.parametrize("case", CASES)
@world(2)
def test_it_is_computed_as_without_ranks(case: str) -> None:
    function, shape = CASES[case]
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))

    def cut(x: Tensor) -> Tensor:
        assert isinstance(x, DTensor)
        return function(x.redistribute(placements=[Shard(1)]))

    ours, usual = (numbers(*shape).requires_grad_() for _ in range(2))
    found, wanted = Border(mesh).around(cut)(ours), function(usual)
    torch.testing.assert_close(found, wanted)
    weights = numbers(*wanted.shape)
    for outputs in (found, wanted):
        (outputs * weights).sum().backward()
    torch.testing.assert_close(ours.grad, usual.grad)

"""Shown parameters: another form for the time of a call, gradients at the parameter itself."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional as F

from fleetx.strategies.tensor_parallel.parameter_views import plain_parameters, settled_parameters
from fleetx.testing import world


def tp() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.words.weight


@world(2)
def test_parameters_are_plain_for_the_time_of_a_call() -> None:
    model, mesh, seen = Tied(), tp(), []
    weight = nn.Parameter(distribute_tensor(model.words.weight.detach(), mesh, [Replicate()]))
    model.words.weight = model.head.weight = weight

    def forward(ids: Tensor) -> Tensor:
        seen.extend([model.words.weight, model.head.weight])
        return F.linear(model.words(ids), model.head.weight)

    out = plain_parameters(model.modules())(forward)(torch.tensor([0, 3]))
    assert type(seen[0]) is Tensor
    assert seen[0] is seen[1]
    assert isinstance(seen[0], nn.Parameter), "what mixed precision takes it for"
    assert model.words.weight is model.head.weight is weight
    out.sum().backward()
    assert isinstance(weight.grad, DTensor)
    assert weight.grad.placements == (Replicate(),)

    def exchange(ids: Tensor) -> None:
        model.head._parameters["weight"] = None

    plain_parameters(model.modules())(exchange)(torch.tensor([0]))
    assert model.head._parameters["weight"] is None, "what somebody else put there stays"
    assert model.words.weight is weight


@world(2)
def test_cut_parameters_and_recurrent_layers() -> None:
    mesh, layer, memory = tp(), nn.Linear(2, 4), nn.GRU(2, 2)
    weight = torch.arange(8.0).view(4, 2)
    layer.weight = nn.Parameter(distribute_tensor(weight, mesh, [Shard(0)]))
    for name, p in list(memory.named_parameters()):
        setattr(memory, name, nn.Parameter(distribute_tensor(p.detach(), mesh, [Replicate()])))

    def forward(x: Tensor) -> Tensor:
        assert type(layer.weight) is not DTensor
        assert layer.weight.equal(weight), "a part alone means nothing outside of regions"
        return memory(x)[0] * (layer.weight * weight).sum()

    plain_parameters([layer, memory])(forward)(numbers(1, 2)).sum().backward()
    assert all(isinstance(weight, DTensor) for weight in memory._flat_weights)
    assert isinstance(memory.weight_hh_l0.grad, DTensor)
    assert isinstance(layer.weight.grad, DTensor)
    assert layer.weight.grad.placements == (Shard(0),)


@world(2)
def test_gradients_of_parts_of_the_positions_are_summed() -> None:
    mesh, norm, twin = tp(), nn.LayerNorm(3), nn.LayerNorm(3)
    for name, p in list(norm.named_parameters()):
        setattr(norm, name, nn.Parameter(distribute_tensor(p.detach(), mesh, [Replicate()])))
    x = distribute_tensor(numbers(2, 4, 3), mesh, [Shard(1)])
    (norm(x) ** 3).sum().backward()
    assert isinstance(norm.weight.grad, DTensor)
    assert norm.weight.grad.placements == (Partial(),), "or the helper is not needed any more"
    norm.zero_grad()
    forward = settled_parameters([norm])(settled_parameters([norm])(norm))
    (forward(x) ** 3).sum().backward()
    (twin(numbers(2, 4, 3)) ** 3).sum().backward()
    for ours, theirs in zip(norm.parameters(), twin.parameters(), strict=True):
        assert isinstance(ours.grad, DTensor)
        assert ours.grad.placements == (Replicate(),)
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)

"""Cut parameters: one DTensor under all names, first rank's values, whole tensors load."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional as F

from fleetx.graph.layer_kinds import places_of_parameters
from fleetx.strategies.tensor_parallel.cut_parameters import (
    accept_whole_tensors,
    cut_parameter,
    moved_buffers,
)
from fleetx.testing import world

CPU = torch.device("cpu")


class Tied(nn.Module):
    """A weight of two names, sizes that no number of ranks divides, and one absent bias."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Embedding(4, 5)
        self.inner = nn.Linear(5, 5)
        self.head = nn.Linear(5, 4, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        # Parts are not asked for: what is loaded is compared, not how layers are computed.
        weights: list[Any] = [self.words.weight, self.inner.weight, self.inner.bias]
        words, inner, bias = (getattr(w, "full_tensor", lambda w=w: w)() for w in weights)
        return F.linear(F.linear(F.embedding(ids, words), inner, bias), words)


DIMS = {"words.weight": 0, "inner.weight": 1, "inner.bias": None}


def cut(model: Tied, mesh: DeviceMesh) -> None:
    for places, dim in zip(places_of_parameters(model).values(), DIMS.values(), strict=True):
        cut_parameter(places, dim, mesh, CPU)
    accept_whole_tensors(model, model.modules())


def equal(model: nn.Module, reference: nn.Module) -> None:
    for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert isinstance(ours, DTensor)
        assert torch.equal(ours.full_tensor(), theirs), name


def test_places_of_a_shared_parameter_are_found_together() -> None:
    model = Tied()
    assert [*places_of_parameters(model).values()] == [
        [(model.words, "weight"), (model.head, "weight")],
        [(model.inner, "weight")],
        [(model.inner, "bias")],
    ]


@world(2)
def test_parameters_are_cut_from_the_values_of_the_first_rank() -> None:
    model = Tied(seed=dist.get_rank())
    model.inner.weight.requires_grad_(False)
    cut(model, init_device_mesh("cpu", (2,)))
    equal(model, Tied())
    assert model.head.weight is model.words.weight
    found: Any = dict(model.named_parameters())
    assert {name: p.placements for name, p in found.items()} == {
        "words.weight": (Shard(0),),
        "inner.weight": (Shard(1),),
        "inner.bias": (Replicate(),),
    }
    assert found["words.weight"].to_local().shape == (2, 5)
    assert found["inner.weight"].to_local().shape == (5, 3 - dist.get_rank())
    assert [name for name, p in found.items() if not p.requires_grad] == ["inner.weight"]


@world(2)
def test_whole_tensors_load_and_others_are_left_to_torch() -> None:
    model = Tied()
    cut(model, init_device_mesh("cpu", (2,)))
    assert model.load_state_dict(Tied(seed=1).state_dict()) == ([], [])
    equal(model, Tied(seed=1))
    assert model.load_state_dict(model.state_dict()) == ([], []), "parts load, too"
    equal(model, Tied(seed=1))
    with pytest.raises(RuntimeError, match=r"size mismatch for inner\.bias"):
        model.load_state_dict(Tied().state_dict() | {"inner.bias": torch.ones(2)})


@world(4)
@pytest.mark.parametrize("released", [True, False])
def test_whole_tensors_load_where_parameters_are_cut_twice(released: bool) -> None:
    """A forward leaves them gathered, or not: torch cuts them again only while it loads."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("sharding", "tp"))
    model, ids = Tied(), torch.tensor([0, 3])
    cut(model, mesh["tp"])
    fully_shard(model.inner, mesh=mesh["sharding"], reshard_after_forward=released)
    fully_shard(model, mesh=mesh["sharding"], reshard_after_forward=released)
    for seed, path in ((1, ""), (2, ""), (3, "inner")):
        reference, part = Tied(seed), model.get_submodule(path)
        part.load_state_dict(reference.get_submodule(path).state_dict())
        assert all(p.device_mesh.ndim == 2 for p in part.parameters())  # type: ignore[attr-defined]
        equal(part, reference.get_submodule(path))
        with torch.no_grad():
            found = model(ids)
        if not path:
            assert torch.equal(found, reference(ids)), "what is gathered is what was loaded"


def test_buffers_are_moved_and_shared_ones_listed_once() -> None:
    first, second = nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False)
    second.register_buffer("shared", first.running_mean)
    found = moved_buffers([first, second], torch.device("cpu"))
    assert [id(b) for b in found] == [id(b) for b in first.buffers()]
    elsewhere = moved_buffers([first], torch.device("meta"))
    assert [b.device.type for b in elsewhere] == ["meta"] * 3
    assert [id(b) for b in elsewhere] == [id(b) for b in first.buffers()]
    assert second._buffers["running_mean"] is None

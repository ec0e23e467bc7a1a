"""Tensors that wait on the host: what moves, when it comes back, when it is freed."""

import gc

import pytest
import torch
from torch import Tensor, nn

from fleetx.strategies.recompute.host_copies import HostCopies, movable

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def activation(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(*shape, device=device, requires_grad=True) * 1


def test_values_come_back_as_they_were(device: torch.device) -> None:
    copies = HostCopies(device)
    x = activation(device, 4, 3, 6, 6).to(memory_format=torch.channels_last)
    expected = x.detach().clone()
    bundle = copies.keep([x, "word", None, torch.arange(3)])
    copies.keep([])
    for _ in range(2):
        back, word, nothing, ids = bundle.take()
        assert torch.equal(back, expected)
        assert back.stride() == expected.stride()
        assert back.device == x.device
        assert (back.requires_grad, back.is_leaf, back.grad_fn) == (True, True, None)
        assert (word, nothing, ids.tolist()) == ("word", None, [0, 1, 2])
        # What a user of the values does to them must not reach the copy.
        back.detach().zero_()


def test_all_but_the_last_bundle_are_on_the_host(device: torch.device) -> None:
    copies = HostCopies(device)
    bundles = [copies.keep([activation(device, 2, i + 1)]) for i in range(4)]
    assert sorted(t.shape[1] for t in copies.on_host()) == [1, 2, 3]
    assert {t.device.type for t in copies.on_host()} == {"cpu"}
    assert all(t.is_pinned() == (device.type == "cuda") for t in copies.on_host())
    assert bundles[-1].host == [None]


def test_taking_one_starts_the_way_back_of_the_one_before(device: torch.device) -> None:
    copies = HostCopies(device)
    bundles = [copies.keep([activation(device, 2, 2)]) for _ in range(4)]
    assert [len(b._coming) for b in bundles] == [0, 0, 0, 0]
    bundles[3].take()
    assert [len(b._coming) for b in bundles] == [0, 0, 1, 0]
    bundles[2].take()
    assert [len(b._coming) for b in bundles] == [0, 1, 0, 0]


def test_the_device_memory_is_let_go(device: torch.device) -> None:
    copies = HostCopies(device)
    x = activation(device, 1000)
    storage = x.untyped_storage()._weak_ref()
    bundle = copies.keep([x])
    copies.keep([])
    del x
    assert torch.UntypedStorage._expired(storage)
    assert len(copies.on_host()) == 1
    del bundle
    gc.collect()
    assert copies.on_host() == []
    assert copies._sent == {}


def test_what_bundles_share_travels_once_until_it_changes(device: torch.device) -> None:
    copies = HostCopies(device)
    mask = torch.ones(3, device=device)
    bundles = [copies.keep([mask]) for _ in range(3)]
    assert len(copies.on_host()) == 1
    copies.keep([])
    mask.add_(1)
    later = copies.keep([mask])
    copies.keep([])
    assert len(copies.on_host()) == 2
    assert [b.take()[0].tolist() for b in (*bundles, later)] == [[1.0] * 3] * 3 + [[2.0] * 3]


@pytest.mark.parametrize("sent", [True, False])
def test_a_change_in_place_is_noticed(sent: bool) -> None:
    copies = HostCopies(torch.device("cpu"))
    x = torch.ones(3)
    bundle = copies.keep([x])
    x.add_(1)
    with pytest.raises(RuntimeError, match=r"shape \[3\] was changed in place after it was kept"):
        _ = copies.keep([]) if sent else bundle.take()


def test_what_moves() -> None:
    x = torch.ones(4, 6)
    assert movable(x)
    assert movable(x.t())
    assert movable(x.bfloat16())
    assert not movable(nn.Parameter(x))
    assert not movable(x.long())
    assert not movable(x[:, :3])
    assert not movable(torch.ones(1).expand(1000))
    assert not movable(x.to_sparse())

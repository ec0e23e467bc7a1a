"""Picking and pooling rows is what torch's embeddings do, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

from fleetx.nn.picking import bags_of, picked, summed, summed_in_bags


def rows() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(9, 5, requires_grad=True)


@pytest.mark.parametrize("shape", [(7,), (4, 3), (2, 3, 2), (0,), (0, 3)])
def test_picking(shape: tuple[int, ...]) -> None:
    ours, theirs = rows(), rows()
    places = torch.randint(0, 9, shape)
    one, other = picked(ours, places), F.embedding(places, theirs)
    assert torch.equal(one, other)
    weights = torch.randn_like(one)
    (one * weights).sum().backward()
    (other * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("offsets", [None, [0, 2, 2, 7], [0], [0, 12]])
def test_pooling(offsets: list[int] | None) -> None:
    ours, theirs = rows(), rows()
    places = torch.randint(0, 9, (4, 3) if offsets is None else (12,))
    begins = None if offsets is None else torch.tensor(offsets)
    bags, number = bags_of(places.shape, begins, places.device)
    one = summed_in_bags(ours, places.reshape(-1), bags, number)
    other = F.embedding_bag(places, theirs, begins, mode="sum")
    torch.testing.assert_close(one, other)
    weights = torch.randn_like(one)
    (one * weights).sum().backward()
    (other * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_other_formats_take_torchs_way() -> None:
    values, targets = torch.randn(6, 2), torch.tensor([0, 2, 2, 1, 0, 2])
    exact = summed(values.double(), targets, 4)
    torch.testing.assert_close(summed(values, targets, 4).double(), exact, rtol=1e-5, atol=1e-6)
    assert exact[3].tolist() == [0, 0]

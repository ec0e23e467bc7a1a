"""Picking and pooling rows is what torch's embeddings do, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

from fleetx.nn.picking import all_picked, bags_of, picked, summed, summed_in_bags


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


def test_looked_up_rows_may_be_written_to() -> None:
    ours = torch.randn(6, 3, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    places = torch.arange(6).reshape(2, 3)
    weights = torch.randn(3, 2, 3).transpose(0, 1)
    whole = ours.detach().clone().requires_grad_()
    ways = {ours: picked(ours, places), whole: all_picked(whole, places.shape)}
    for rows, found in (ways | {theirs: F.embedding(places, theirs)}).items():
        found.mul_(2)  # the rows stay as they are
        (found.square() * weights).sum().backward()
        assert torch.equal(rows, theirs)
    for rows in ways:
        assert rows.grad is not None
        torch.testing.assert_close(rows.grad, theirs.grad)


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


@pytest.mark.parametrize("offsets", [[1, 2], [0, 5, 3], [0, 13], []])
def test_offsets_that_do_not_cover_the_ids_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="must begin with 0, rise, and end before the 12 ids"):
        bags_of(torch.Size([12]), torch.tensor(offsets, dtype=torch.long), torch.device("cpu"))


@pytest.mark.parametrize(("shape", "offsets"), [((3,), None), ((2, 2), [0]), ((2, 2, 2), None)])
def test_shapes_that_make_no_bags_are_refused(
    shape: tuple[int, ...], offsets: list[int] | None
) -> None:
    begins = None if offsets is None else torch.tensor(offsets)
    with pytest.raises(ValueError, match="make no bags"):
        bags_of(torch.Size(shape), begins, torch.device("cpu"))

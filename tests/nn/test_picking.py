"""Picking and pooling rows is what torch's embeddings do, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

from fleetx.nn.picking import AllInOrder, Picked, Pooled, Way, bags_of, summed
from fleetx.ps import kernels, kernels_numba, kernels_numpy

WIDTHS = [1, 5, 8, 16, 24]
"""Some are copied eight at a time."""


@pytest.fixture(params=[kernels_numba, kernels_numpy], autouse=True)
def _engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "active", request.param)


def rows(width: int = 5) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(9, width, requires_grad=True)


def check(way: Way, width: int, theirs: torch.Tensor, expected: torch.Tensor) -> None:
    """Whether a way gives what torch does, and its way back torch's gradients."""
    found = way.forth(rows(width).detach())
    torch.testing.assert_close(found, expected.detach().reshape(found.shape))
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    torch.testing.assert_close(way.back(weights.reshape(found.shape)), theirs.grad)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shape", [(7,), (4, 3), (2, 3, 2), (0,), (0, 3)])
def test_picking(shape: tuple[int, ...], width: int) -> None:
    theirs, places = rows(width), torch.randint(0, 9, shape)
    check(Picked(places.reshape(-1), 9), width, theirs, F.embedding(places, theirs))


def test_all_in_order() -> None:
    theirs = rows()
    check(AllInOrder(), 5, theirs, F.embedding(torch.arange(9), theirs))


def test_gradients_may_lie_in_any_order_in_memory() -> None:
    places, gradient = torch.randint(0, 9, (6,)), torch.randn(5, 6).T
    straight = Picked(places, 9).back(gradient.contiguous())
    assert torch.equal(Picked(places, 9).back(gradient), straight)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("offsets", [None, [0, 2, 2, 7], [0], [0, 12]])
def test_pooling(offsets: list[int] | None, mode: str, width: int) -> None:
    theirs, places = rows(width), torch.randint(0, 9, (4, 3) if offsets is None else (12,))
    begins = None if offsets is None else torch.tensor(offsets)
    bags, number = bags_of(places.shape, begins, places.device)
    way = Pooled(places.reshape(-1), 9, bags, number, mean=mode == "mean")
    check(way, width, theirs, F.embedding_bag(places, theirs, begins, mode=mode))


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

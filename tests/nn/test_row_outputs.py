"""Picking and pooling rows is what torch's embeddings do, forward and backward."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fleetx.nn import SparseEmbedding
from fleetx.nn.row_outputs import Indexed, InOrder, Pooled, RowOutput, bags_of
from fleetx.ps.tables import kernels
from fleetx.ps.tables.kernels import numba_kernels, numpy_kernels

WIDTHS = [1, 5, 8, 16, 24]
"""Some are copied eight at a time."""


@pytest.fixture(params=[numba_kernels, numpy_kernels], autouse=True)
def _engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "active", request.param)


def rows(width: int = 5) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(9, width, requires_grad=True)


CPU = torch.device("cpu")


def check(output: RowOutput, width: int, theirs: torch.Tensor, expected: torch.Tensor) -> None:
    """Whether a way gives what torch does, and its way back torch's gradients."""
    found = output.forward(rows(width).detach().numpy())
    torch.testing.assert_close(found, expected.detach().reshape(found.shape))
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    backward = torch.from_numpy(output.backward(weights.reshape(found.shape)))
    torch.testing.assert_close(backward, theirs.grad)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shape", [(7,), (4, 3), (2, 3, 2), (0,), (0, 3)])
def test_picking(shape: tuple[int, ...], width: int) -> None:
    theirs, places = rows(width), torch.randint(0, 9, shape)
    output = Indexed(places.reshape(-1).numpy(), 9, CPU)
    check(output, width, theirs, F.embedding(places, theirs))


def test_all_in_order() -> None:
    theirs = rows()
    check(InOrder(CPU), 5, theirs, F.embedding(torch.arange(9), theirs))


def test_gradients_may_lie_in_any_order_in_memory() -> None:
    places, gradient = torch.randint(0, 9, (6,)).numpy(), torch.randn(5, 6).T
    output = Indexed(places, 9, CPU)
    np.testing.assert_array_equal(output.backward(gradient), output.backward(gradient.contiguous()))


def bags(offsets: list[int] | None, shape: torch.Size) -> tuple[torch.Tensor | None, Any]:
    begins = None if offsets is None else torch.tensor(offsets, dtype=torch.long)
    return begins, bags_of(shape, begins)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("offsets", [None, [0, 2, 2, 7], [0], [0, 12]])
def test_pooling(offsets: list[int] | None, mode: str, width: int) -> None:
    theirs, places = rows(width), torch.randint(0, 9, (4, 3) if offsets is None else (12,))
    begins, sorted_ = bags(offsets, places.shape)
    output = Pooled(places.reshape(-1).numpy(), 9, sorted_, CPU, mean=mode == "mean")
    check(output, width, theirs, F.embedding_bag(places, theirs, begins, mode=mode))


def test_pooling_nothing() -> None:
    output = Pooled(np.empty(0, np.int64), 0, bags(None, torch.Size([3, 0]))[1], CPU)
    assert output.forward(np.empty((0, 1), np.float32)).tolist() == [[0], [0], [0]]
    assert output.backward(torch.ones(3, 1)).shape == (0, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    """What kernels do not reach is torch's work, to the same numbers."""
    places, there = torch.randint(0, 9, (12,)).numpy(), torch.device("cuda")
    values, bag = rows().detach().numpy(), bags(None, torch.Size([4, 3]))[1]
    ways: list[tuple[RowOutput, RowOutput]] = [
        (Indexed(places, 9, CPU), Indexed(places, 9, there)),
        (Pooled(places, 9, bag, CPU), Pooled(places, 9, bag, there)),
        (Pooled(places, 9, bag, CPU, mean=True), Pooled(places, 9, bag, there, mean=True)),
        (InOrder(CPU), InOrder(there)),
    ]
    for here, away in ways:
        found = here.forward(values)
        torch.testing.assert_close(found, away.forward(values).cpu())
        weights = torch.randn_like(found)
        np.testing.assert_allclose(here.backward(weights), away.backward(weights.cuda()), rtol=1e-5)


@pytest.mark.parametrize("offsets", [[1, 2], [0, 5, 3], [0, 13], []])
def test_offsets_that_do_not_cover_the_ids_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="must begin with 0, rise, and end before the 12 ids"):
        bags(offsets, torch.Size([12]))


@pytest.mark.parametrize("offsets", [[0.0, 2.0], [[0, 2]], [True]])
def test_offsets_that_are_no_list_of_whole_numbers_are_refused(offsets: Any) -> None:
    given = torch.tensor(offsets)
    with pytest.raises(ValueError, match=r"whole numbers in a row.*got torch\."):
        bags_of(torch.Size([12]), given)
    layer = SparseEmbedding(2, name="bags", pooling="sum")
    ids = torch.arange(12)
    for name in ("offsets", "per_sample_weights"):
        with pytest.raises(TypeError, match=f"{name} must be a tensor.*as_tensor"):
            layer(ids, **{name: offsets})


@pytest.mark.parametrize(("shape", "offsets"), [((3,), None), ((2, 2), [0]), ((2, 2, 2), None)])
def test_shapes_that_make_no_bags_are_refused(
    shape: tuple[int, ...], offsets: list[int] | None
) -> None:
    with pytest.raises(ValueError, match="make no bags"):
        bags(offsets, torch.Size(shape))

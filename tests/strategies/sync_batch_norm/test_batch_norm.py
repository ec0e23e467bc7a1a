"""Synchronised normalisation is what one process computes on the samples of all ranks."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F

from fleetx.strategies.sync_batch_norm.batch_norm import merge, normalise, statistics, track
from fleetx.testing import world

SHAPES = {"1d": (12, 3), "1d with length": (12, 3, 5), "2d": (12, 3, 4, 2), "3d": (12, 3, 2, 3, 2)}
SPLITS = {"equal": [6, 6], "unequal": [11, 1], "one rank has nothing": [12, 0]}


def group() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def values(*shape: int, dtype: torch.dtype = torch.float32, mean: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return (torch.randn(*shape, generator=generator) * 2 + mean).to(dtype)


def mine(whole: Tensor, split: list[int]) -> Tensor:
    return whole.split(split)[dist.get_rank()].detach().clone()


def one_process(x: Tensor, dy: Tensor, *, affine: bool) -> list[Tensor]:
    """Result, gradients of input, weight and bias, for all samples at once."""
    x = x.detach().requires_grad_()
    scale = torch.arange(1.0, 4.0, requires_grad=True)
    shift = torch.arange(3.0, requires_grad=True)
    weight, bias = (scale, shift) if affine else (None, None)
    y = F.batch_norm(x, None, None, weight, bias, training=True, eps=1e-3)
    (y.double() * dy).sum().backward()
    found = [y.detach(), x.grad, *(t.grad for t in (scale, shift) if affine)]
    return [t for t in found if t is not None]


def all_ranks(x: Tensor, dy: Tensor, *, affine: bool) -> list[Tensor]:
    """The same from this rank's samples; gradients of weight and bias are summed over ranks."""
    x = x.requires_grad_()
    scale = torch.arange(1.0, 4.0, requires_grad=True)
    shift = torch.arange(3.0, requires_grad=True)
    weight, bias = (scale, shift) if affine else (None, None)
    y = normalise(x, weight, bias, eps=1e-3, group=group())[0]
    (y.double() * dy).sum().backward()
    sums = [t.grad for t in (scale, shift) if t.grad is not None]
    for total in sums:
        dist.all_reduce(total)
    assert x.grad is not None
    assert len(sums) == (2 if affine else 0)
    return [y.detach(), x.grad, *sums]


@world(2)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_result_and_gradients(shape: tuple[int, ...], split: list[int], affine: bool) -> None:
    x, dy = values(*shape), values(*shape, mean=0.5).flip(0).double()
    theirs = one_process(x, dy, affine=affine)
    ours = all_ranks(mine(x, split), mine(dy, split), affine=affine)
    for at, (whole, found) in enumerate(zip(theirs, ours, strict=True)):
        expected = mine(whole, split) if at < 2 else whole
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=2e-6)


@world(2)
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_gradients_in_double_precision(split: list[int]) -> None:
    x, dy = values(12, 3, 4, dtype=torch.float64), values(12, 3, 4, dtype=torch.float64)
    expected = x.clone().requires_grad_()
    F.batch_norm(expected, None, None, training=True).mul(dy).sum().backward()
    found = mine(x, split).requires_grad_()
    normalise(found, None, None, eps=1e-5, group=group())[0].mul(mine(dy, split)).sum().backward()
    assert expected.grad is not None
    torch.testing.assert_close(found.grad, mine(expected.grad, split), rtol=1e-12, atol=1e-12)


@world(2)
def test_half_precision_is_normalised_with_statistics_in_single() -> None:
    x, dy = values(12, 3, 4, dtype=torch.bfloat16), values(12, 3, 4).double()
    theirs = one_process(x, dy, affine=True)
    ours = all_ranks(mine(x, [5, 7]), mine(dy, [5, 7]), affine=True)
    assert [t.dtype for t in ours] == [torch.bfloat16] * 2 + [torch.float32] * 2
    for at, (whole, found) in enumerate(zip(theirs, ours, strict=True)):
        expected = mine(whole, [5, 7]) if at < 2 else whole
        torch.testing.assert_close(found.double(), expected.double(), rtol=1e-2, atol=1e-2)
    mean, variance, _ = statistics(mine(x, [5, 7]).float(), group())
    torch.testing.assert_close(mean, x.float().mean((0, 2)), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variance, x.float().var((0, 2), correction=0), rtol=1e-6, atol=0)


@world(2)
def test_every_rank_gets_the_same_bits() -> None:
    mean, variance, count = statistics(mine(values(12, 3, 7), [9, 3]), group())
    both = [torch.empty(7, dtype=torch.float64) for _ in range(2)]
    dist.all_gather(both, torch.cat([mean.double(), variance.double(), count.view(1)]))
    assert torch.equal(both[0], both[1])
    assert count == 12 * 7


def test_a_large_mean_does_not_eat_the_variance() -> None:
    x = values(4096, 1, dtype=torch.float64, mean=1e4).float()
    parts = x.split([4000, 96])
    found = [torch.var_mean(part, 0, correction=0) for part in parts]
    means = torch.stack([mean for _, mean in found])
    counts = torch.tensor([[4000.0], [96.0]])
    deviations = torch.stack([variance for variance, _ in found]) * counts
    _, variance, count = merge(means, deviations, counts)
    exact = x.double().var(0, correction=0)
    assert count == 4096
    torch.testing.assert_close(variance.double(), exact, rtol=1e-4, atol=0)
    # What a sum of squares would have given.
    assert abs(float((x.square().mean() - x.mean().square()) - exact)) > 0.1


def test_merging_weights_parts_by_their_counts() -> None:
    mean, variance, count = merge(
        torch.tensor([[1.0], [5.0]]), torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [3.0]])
    )
    assert (mean.item(), count.item()) == (4.0, 4.0)
    assert variance.item() == (9 + 2 + 3) / 4


def test_running_statistics_move_by_their_share() -> None:
    running = torch.tensor([1.0, 2.0])
    track(running, torch.tensor([3.0, 6.0]), 0.25)
    assert running.tolist() == [1.5, 3.0]


@world(2)
def test_one_value_on_all_ranks_has_no_variance() -> None:
    x = torch.ones(1 - dist.get_rank(), 3)
    with pytest.raises(ValueError, match="1 value per channel on all ranks together"):
        normalise(x, None, None, eps=1e-5, group=group())


@world(2)
def test_one_gather_forward_and_one_reduction_backward() -> None:
    def counts(mode: CommDebugMode) -> dict[str, int]:
        return {str(kind): count for kind, count in mode.get_comm_counts().items() if count}

    x = values(4, 3, 5).requires_grad_()
    weight = torch.ones(3, requires_grad=True)
    with CommDebugMode() as forward:
        y = normalise(x, weight, None, eps=1e-5, group=group())[0]
    with CommDebugMode() as backward:
        y.sum().backward()
    assert counts(forward) == {"c10d.allgather_": 1}
    assert counts(backward) == {"c10d.allreduce_": 1}
    with CommDebugMode() as of_data:
        normalise(x.detach(), weight, None, eps=1e-5, group=group())[0].sum().backward()
    assert counts(of_data) == {"c10d.allgather_": 1}


@world(2)
def test_second_derivatives_are_refused() -> None:
    x = values(4, 3, 5).requires_grad_()
    y = normalise(x, None, None, eps=1e-5, group=group())[0]
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()

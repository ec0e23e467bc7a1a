"""Sparse exchange: the largest are chosen, nothing is lost, messages arrive as they were sent."""

import math

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from fleetx.comm.reduction import flat
from fleetx.strategies.dgc import sparse
from fleetx.testing import world


def values(count: int, kind: str = "normal") -> Tensor:
    drawn = torch.randn(count, generator=torch.Generator().manual_seed(count))
    return {"normal": drawn, "heavy tail": drawn**5, "uniform": drawn.sigmoid() - 0.5}[kind]


def exact(together: Tensor, sizes: sparse.Sizes) -> set[int]:
    """What sorting each tensor by itself would choose."""
    chosen, start = set(), 0
    for count, wanted in zip(*sizes, strict=True):
        order = sorted(range(count), key=lambda at: -abs(float(together[start + at])))
        chosen |= {start + at for at in order[:wanted]}
        start += count
    return chosen


@pytest.mark.parametrize("kind", ["normal", "heavy tail", "uniform"])
@pytest.mark.parametrize("sparsity", [0.5, 0.9, 0.999, 0.99999])
def test_the_largest_of_every_tensor_are_chosen(kind: str, sparsity: float) -> None:
    numbers = (16_384, 100_003, 20_000)
    sizes = sparse.sizes(numbers, sparsity)
    scales = (1, 1e-3, 1e3)
    drawn = [values(n, kind) * scale for n, scale in zip(numbers, scales, strict=True)]
    together = torch.cat(drawn)
    where = sparse.choose(together, sizes, sparse.Tables())
    assert len(where) == sum(sizes.wanted)
    assert set(where.tolist()) == exact(together, sizes)
    # Each tensor has its own part of the message.
    start = 0
    for part, count in zip(where.split(sizes.wanted), numbers, strict=True):
        assert start <= int(part.min()) <= int(part.max()) < start + count
        start += count


def test_a_sparsity_of_zero_sends_everything() -> None:
    sizes = sparse.sizes((16_384, 17_000), 0.0)
    assert sparse.choose(values(33_384), sizes, sparse.Tables()).tolist() == list(range(33_384))


@pytest.mark.parametrize(("count", "sparsity", "expected"), [(16_384, 0.999, 16), (10, 0.999, 1)])
def test_at_least_one_entry_travels(count: int, sparsity: float, expected: int) -> None:
    assert sparse.share(count, sparsity) == expected


def test_columns_of_different_size_are_not_overlooked() -> None:
    # A sample with a stride of a power of two would see some columns of this matrix only.
    matrix = torch.rand(1024, 1024, generator=torch.Generator().manual_seed(0)) + 1
    matrix[:, 5] *= 100
    sizes = sparse.sizes((matrix.numel(),), 0.999)
    where = sparse.choose(matrix.flatten(), sizes, sparse.Tables())
    assert (where >= 0).sum() == 1048
    assert int((where % 1024 == 5).sum()) == 1024


def test_equal_magnitudes_fill_the_message() -> None:
    where = sparse.choose(
        torch.full((50_000,), -0.5), sparse.sizes((50_000,), 0.999), sparse.Tables()
    )
    assert len(set(where.tolist()) - {-1}) == sparse.share(50_000, 0.999)


def test_equal_magnitudes_leave_room_for_the_tensors_behind_them() -> None:
    sizes = sparse.sizes((400_000, 20_000, 16_384), 0.999)
    behind = values(36_384)
    together = torch.cat([torch.full((400_000,), 0.5), behind])
    first, *others = sparse.choose(together, sizes, sparse.Tables()).split(sizes.wanted)
    assert set(torch.cat(others).tolist()) == {
        at + 400_000 for at in exact(behind, sparse.sizes((20_000, 16_384), 0.999))
    }
    sent = [at for at in first.tolist() if at >= 0]
    assert len(sent) == len(set(sent)) > 16
    assert max(sent) < 400_000


def test_zeros_leave_places_empty() -> None:
    few = torch.zeros(100_000)
    few[[99_990, 70_000, 3]] = torch.tensor([1e-30, -2.0, 3.0])
    where = sparse.choose(few, sparse.sizes((100_000,), 0.999), sparse.Tables())
    assert len(where) == 100
    assert sorted(where.tolist()) == [-1] * 97 + [3, 70_000, 99_990]


@pytest.mark.parametrize("wire", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [None, 1024.0])
def test_sent_and_waiting_add_up_to_what_was_there(wire: torch.dtype, scale: float | None) -> None:
    sizes = sparse.sizes((16_384, 30_000), 0.99)
    before = values(46_384)
    velocity, waiting = torch.ones_like(before), before.clone()
    factor = None if scale is None else torch.tensor(scale)
    where, sent = sparse.take(velocity, waiting, sizes, sparse.Tables(), scale=factor, wire=wire)
    assert sent.dtype == wire
    assert len(sent) == len(where) == 163 + 300
    assert torch.equal(sent, (before[where] * (scale or 1)).to(wire))
    arrived = torch.zeros_like(before).index_add(0, where, sent.float() / (scale or 1))
    assert torch.equal(arrived + waiting, before)
    masked = torch.ones(46_384, dtype=torch.bool)
    masked[where] = False
    assert torch.equal(velocity, masked.float())


def test_what_is_too_large_for_the_wire_goes_on_waiting() -> None:
    waiting = torch.zeros(16_384)
    waiting[7] = 100_000.0
    _, sent = sparse.take(
        torch.zeros(16_384),
        waiting,
        sparse.sizes((16_384,), 0.999),
        sparse.Tables(),
        scale=None,
        wire=torch.float16,
    )
    assert float(sent.max()) == 65_504
    assert float(waiting[7]) == 100_000 - 65_504


def test_empty_places_leave_the_first_entry_alone() -> None:
    velocity, waiting = torch.full((16_384,), 2.0), torch.zeros(16_384)
    waiting[9] = 1
    sizes = sparse.sizes((16_384,), 0.999)
    where, sent = sparse.take(
        velocity, waiting, sizes, sparse.Tables(), scale=None, wire=torch.float32
    )
    assert sorted(where.tolist()) == [-1] * 15 + [9]
    assert float(sent.sum()) == 1
    assert float(velocity[0]) == 2
    assert float(velocity[9]) == 0
    assert not waiting.any()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("wire", [torch.float32, torch.float16])
def test_what_is_not_finite_is_always_sent(bad: float, wire: torch.dtype) -> None:
    waiting = values(50_000)
    waiting[31_234] = bad
    sizes = sparse.sizes((50_000,), 0.999)
    where, sent = sparse.take(
        torch.zeros(50_000), waiting, sizes, sparse.Tables(), scale=None, wire=wire
    )
    dense = torch.zeros(50_000)
    sparse.add_mean(dense, where[None], sent[None])
    assert not dense.isfinite().all()


@pytest.mark.parametrize("count", [1, 3, 64])
@pytest.mark.parametrize("indices", [torch.int32, torch.int64])
@pytest.mark.parametrize("wire", [torch.float32, torch.float16])
def test_messages_come_out_as_they_went_in(
    count: int, indices: torch.dtype, wire: torch.dtype
) -> None:
    where, sent = torch.arange(-1, count - 1, dtype=indices), torch.randn(count).to(wire)
    message = sparse.pack(where, sent)
    payload = count * (indices.itemsize + wire.itemsize)
    assert payload <= message.numel() * message.itemsize < payload + sparse.SEGMENT
    for got_where, got in zip(
        *sparse.unpack(torch.stack([message] * 3), count, indices, wire), strict=True
    ):
        assert torch.equal(got_where, where)
        assert torch.equal(got, sent)


def test_indices_grow_with_the_buffer() -> None:
    assert sparse.index_type(2**31 - 1) == torch.int32
    assert sparse.index_type(2**31) == torch.int64


def test_places_move_to_where_the_tensors_lie() -> None:
    sizes = sparse.Sizes((20_000, 30_000), (2, 3))
    where = torch.tensor([19_999, -1, 20_000, -1, 49_999])
    assert sparse.placed(where, sizes, (7, 50_000), sparse.Tables()).tolist() == [
        20_006,
        -1,
        50_000,
        -1,
        79_999,
    ]


@world(3)
def test_every_rank_gets_the_mean_of_what_was_sent() -> None:
    rank = dist.get_rank()
    buffer = torch.arange(12.0) * (rank + 1)
    where = torch.tensor([4, -1, 6 + rank])
    sent = torch.tensor([3.0, 0.0, float(rank + 1)])
    group = dist.group.WORLD
    assert group is not None
    filled = sparse.exchange(
        buffer,
        where,
        sent,
        sent=[slice(3, 9)],
        others=[slice(0, 3), slice(9, 12)],
        average=flat(group, None),
        group=group,
    ).wait()
    expected = torch.tensor([0, 2, 4, 0, 3, 0, 1 / 3, 2 / 3, 1, 18, 20, 22.0])
    assert filled.data_ptr() == buffer.data_ptr()
    torch.testing.assert_close(filled, expected)

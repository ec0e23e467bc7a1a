"""Gradients that are exchanged after backward: packing, layouts, missing ones."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from fleetx.comm.reduction import flat
from fleetx.strategies.data_parallel.late_buckets import LateBucket, exchange, fill_missing
from fleetx.testing import world


def with_gradients(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    found: list[Tensor] = []
    for number, shape in enumerate(shapes):
        parameter = nn.Parameter(torch.zeros(shape, dtype=dtype))
        parameter.grad = torch.full(shape, float(number + 1), dtype=dtype)
        found.append(parameter)
    return found


def same(found: Tensor | None, wanted: Tensor) -> bool:
    return found is not None and torch.equal(found, wanted)


def doubled(sizes: list[int]) -> object:
    def reduce(bucket: LateBucket) -> Future[Tensor]:
        sizes.append(bucket.buffer().numel())
        future: Future[Tensor] = Future()
        future.set_result(bucket.buffer().mul_(2))
        return future

    return reduce


def test_buckets_close_at_the_limit_and_give_every_gradient_back() -> None:
    sizes: list[int] = []
    parameters = with_gradients((4,), (2, 2), (10,), (1,))
    exchange(parameters, doubled(sizes), limit=8 * 4)  # type: ignore[arg-type]
    assert sizes == [8, 10, 1]
    for number, parameter in enumerate(parameters):
        assert same(parameter.grad, torch.full_like(parameter, 2.0 * (number + 1)))


def test_types_do_not_mix() -> None:
    sizes: list[int] = []
    parameters = with_gradients((4,)) + with_gradients((4,), dtype=torch.float64)
    exchange(parameters, doubled(sizes), limit=10**6)  # type: ignore[arg-type]
    assert sizes == [4, 4]
    assert all(same(p.grad, torch.full_like(p, 2.0)) for p in parameters)


def test_channels_last_gradients_lie_in_the_order_of_memory() -> None:
    parameter = nn.Parameter(torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last))
    parameter.grad = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    before = parameter.grad.clone()
    bucket = LateBucket(0, [parameter], last=True)
    memory = before.permute(0, 2, 3, 1).reshape(-1)
    assert torch.equal(bucket.buffer(), memory)
    bucket.buffer().add_(1)
    bucket.give_back()
    assert same(parameter.grad, before + 1)


def test_gradients_with_gaps_come_back_too() -> None:
    parameter = nn.Parameter(torch.zeros(3, 2))
    parameter.grad = torch.arange(12.0).view(3, 4)[:, ::2]
    exchange([parameter], doubled([]), limit=10**6)  # type: ignore[arg-type]
    assert same(parameter.grad, 2 * torch.arange(12.0).view(3, 4)[:, ::2])


def test_the_bucket_looks_like_that_of_ddp() -> None:
    parameters = with_gradients((2,), (3,))
    bucket = LateBucket(5, parameters, last=False)
    assert (bucket.index(), bucket.is_last()) == (5, False)
    assert bucket.parameters() == parameters
    views = bucket.gradients()
    assert [view.storage_offset() for view in views] == [0, 2]
    assert all(view.data_ptr() >= bucket.buffer().data_ptr() for view in views)


@world(2)
def test_ranks_average_and_agree_on_what_was_reached() -> None:
    rank, group = dist.get_rank(), dist.group.WORLD
    assert group is not None
    everywhere, here, nowhere = with_gradients((3,), (2,), (2,))
    nowhere.grad = None
    if rank == 1:
        here.grad = None
    found = fill_missing([everywhere, here, nowhere], group)
    assert [id(p) for p in found] == [id(everywhere), id(here)]
    average = flat(group, None)
    exchange(found, lambda bucket: average(bucket.buffer()), limit=10**6)
    assert same(everywhere.grad, torch.ones(3))
    assert same(here.grad, torch.ones(2)), "2 on one rank and nothing on the other"
    assert nowhere.grad is None

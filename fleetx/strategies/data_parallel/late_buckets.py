"""Buckets of gradients that are exchanged after the backward pass, where no hook can see them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from fleetx.comm.local import local


class LateBucket:
    """This rank's parts of some gradients in one buffer; looks like DDP's bucket."""

    def __init__(self, index: int, parameters: Sequence[Tensor], last: bool) -> None:
        self._index, self._parameters, self._last = index, list(parameters), last
        self._sources = [_gradient(parameter) for parameter in parameters]
        self._buffer = torch.cat([_flat(source) for source in self._sources])

    def index(self) -> int:
        """Its place among all buckets."""
        return self._index

    def is_last(self) -> bool:
        """Whether no bucket follows."""
        return self._last

    def buffer(self) -> Tensor:
        """All gradients one after the other."""
        return self._buffer

    def parameters(self) -> list[Tensor]:
        """Whose gradients they are."""
        return self._parameters

    def gradients(self) -> list[Tensor]:
        """Each gradient as a part of the buffer."""
        sizes = [source.numel() for source in self._sources]
        return list(self._buffer.split(sizes))

    def give_back(self) -> None:
        """Write the buffer into the gradients."""
        for source, part in zip(self._sources, self.gradients(), strict=True):
            _flat(source).copy_(part) if _is_dense(source) else source.copy_(part.view_as(source))


@torch.no_grad()
def exchange(
    parameters: Sequence[Tensor], reduce: Callable[[Any], Future[Tensor]], limit: int
) -> None:
    """Let ``reduce`` make the gradients of all ranks one, in buckets of up to ``limit`` bytes."""
    packed = list(_packed(parameters, limit))
    buckets = [LateBucket(at, group, group is packed[-1]) for at, group in enumerate(packed)]
    pending = [reduce(bucket) for bucket in buckets]
    for bucket, future in zip(buckets, pending, strict=True):
        received = future.wait()
        if received.data_ptr() != bucket.buffer().data_ptr():
            bucket.buffer().copy_(received)
        bucket.give_back()


@torch.no_grad()
def fill_missing(parameters: Sequence[Tensor], group: dist.ProcessGroup) -> list[Tensor]:
    """Give a gradient of zeros to parameters that only other ranks reached.

    Returns:
        The parameters that some rank reached; the others have no gradient anywhere.
    """
    reached = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8)
    reached = reached.to(local(parameters[0]).device)
    dist.all_reduce(reached, op=dist.ReduceOp.MAX, group=group)
    found = [p for p, seen in zip(parameters, reached.tolist(), strict=True) if seen]
    for parameter in found:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return found


def _packed(parameters: Sequence[Tensor], limit: int) -> Iterator[list[Tensor]]:
    """Parameters of one type, up to the limit."""
    bucket: list[Tensor] = []
    size = 0
    for parameter in sorted(parameters, key=lambda p: str(p.dtype)):
        count = local(parameter).numel() * parameter.element_size()
        if bucket and (parameter.dtype != bucket[0].dtype or size + count > limit):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += count
    if bucket:
        yield bucket


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None, "whoever packs has looked for missing gradients"
    return local(parameter.grad)


def _is_dense(tensor: Tensor) -> bool:
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def _flat(tensor: Tensor) -> Tensor:
    """The elements in the order of memory, as DDP lays them out, where there are no gaps.

    Then it is a view, which ``give_back`` writes through: of a dense tensor, as many numbers as it
    has from where it begins are its own and nobody else's. With gaps it is a copy.
    """
    return tensor.as_strided((tensor.numel(),), (1,)) if _is_dense(tensor) else tensor.reshape(-1)

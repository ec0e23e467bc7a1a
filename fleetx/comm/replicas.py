"""Making replicas equal: from one rank, or by their mean."""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fleetx.comm.local import local
from fleetx.torch_internals import foreach_copy_

BUCKET_BYTES = 32 * 2**20
"""Tensors travel together up to this size, so that small ones do not pay for a collective each."""


@torch.no_grad()
def copy_from_first_rank(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> None:
    """Overwrite the tensors of all ranks with those of the group's first rank."""
    first = dist.get_global_rank(group, 0)
    for bucket in buckets(map(local, tensors)):
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
        dist.broadcast(flat, src=first, group=group)
        _spread(flat, bucket)


@torch.no_grad()
def average(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> None:
    """Replace each tensor by its mean over the ranks of the group, in place."""
    size = dist.get_world_size(group)
    for bucket in buckets(map(local, tensors)):
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in bucket])
        dist.all_reduce(flat, group=group)
        _spread(flat.div_(size), bucket)


def _spread(flat: Tensor, bucket: list[Tensor]) -> None:
    parts = flat.split([tensor.numel() for tensor in bucket])
    # One call for all: models have hundreds, and a card would wait for the host.
    foreach_copy_(bucket, [part.view_as(t) for part, t in zip(parts, bucket, strict=True)])


def buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one type, in their order, packed up to ``BUCKET_BYTES``."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in sorted(tensors, key=lambda t: str(t.dtype)):
        grown = size + tensor.numel() * tensor.element_size()
        if bucket and (tensor.dtype != bucket[0].dtype or grown > BUCKET_BYTES):
            yield bucket
            bucket, grown = [], tensor.numel() * tensor.element_size()
        bucket.append(tensor)
        size = grown
    if bucket:
        yield bucket


def start_equal(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Give every replica the parameters and buffers of the first one.

    What is on the meta device has no numbers yet, and all ranks will draw the same.
    """
    if dist.get_world_size(group) > 1:
        tensors = (*model.parameters(), *model.buffers())
        copy_from_first_rank((t for t in tensors if not t.is_meta), group)


class Drift:
    """What drifts apart when replicas train alone: trained parameters and running statistics.

    A parameter that is frozen at a meeting may have moved since the last one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._still: list[nn.Parameter] = list(model.parameters())
        """Parameters that did not move since the last meeting."""

    def note(self) -> None:
        """An update moved what is trained now."""
        if self._still:
            self._still = [p for p in self._still if not p.requires_grad]

    def note_all(self) -> None:
        """Nothing is known of the updates since the last meeting."""
        self._still = []

    def to_average(self) -> list[Tensor]:
        """What replicas have to agree upon; from here on they are equal."""
        still, every = {id(p) for p in self._still}, list(self._model.parameters())
        self._still = every
        moved = [p for p in every if id(p) not in still]
        return moved + [b for b in self._model.buffers() if b.is_floating_point()]

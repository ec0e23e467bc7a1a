"""Gradients as a few large entries: choose them, pack them, gather them, add them up."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future, collect_all

from fleetx.comm.reduction import Average

WORTH_SAMPLING = 2**20
"""Below this many numbers an exact choice takes less time than the launches of a sampled one."""

SAMPLED = 512
"""How many of the wanted entries a sample holds; its threshold then is off by some 4 percent."""

MARGIN = 1.25
"""The sample aims at this many times the wanted entries, so that hardly ever too few are found."""

ROOM = 2
"""Candidates are kept up to this many times the wanted entries."""

SEGMENT = 8
"""A message is a multiple of this many bytes, so that every part of it may hold any format."""


_all_gather: Callable[..., dist.Work] = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)
"""The name changed in torch 2.13, and the old one warns since."""


class Sent(NamedTuple):
    """What this rank sends of one piece of a buffer."""

    piece: slice
    where: Tensor
    """Places in the piece; -1 for those left empty."""
    values: Tensor


def share(count: int, sparsity: float) -> int:
    """How many of ``count`` entries travel when that part of them stays at home."""
    return max(1, int(count * (1 - sparsity)))


def choose(values: Tensor, wanted: int) -> Tensor:
    """Where the ``wanted`` largest magnitudes of a flat tensor are; -1 for places left empty.

    Large tensors are judged by a sample: the choice then is nearly always the exact one, never
    holds more, and neither way makes the host wait for the device.
    """
    if wanted >= values.numel():
        return torch.arange(values.numel(), device=values.device)
    if values.numel() < WORTH_SAMPLING or wanted * ROOM * 8 > values.numel():
        return values.abs().topk(wanted, sorted=False).indices
    return by_sample(values, wanted)


def by_sample(values: Tensor, wanted: int) -> Tensor:
    """The largest of those that exceed a threshold, which a sample gives."""
    magnitudes = values.abs()
    # An odd stride does not fall into step with rows and columns.
    sample = magnitudes[:: wanted // SAMPLED | 1]
    rank = int(MARGIN * wanted * sample.numel() / values.numel()) + 1
    threshold = sample.topk(rank, sorted=False).values.min()
    # Zeros are never worth a place, also when most entries are zero; "not below" keeps nan.
    threshold = threshold.clamp(min=torch.finfo(values.dtype).tiny)
    large = (magnitudes < threshold).logical_not_()
    found = torch.nonzero_static(large, size=ROOM * wanted, fill_value=-1).squeeze(1)
    size = magnitudes[found.clamp_min(0)].masked_fill_(found < 0, -1)
    return found[size.topk(wanted, sorted=False).indices]


def take(
    velocity: Tensor, waiting: Tensor, wanted: int, *, scale: Tensor | None, wire: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Move the largest entries of ``waiting`` out of it: where they were, and what to send.

    What is sent is multiplied by ``scale`` and rounded to ``wire``; what rounding loses goes on
    waiting. The velocity of an entry that is sent starts again at zero.
    """
    where = choose(waiting, wanted)
    at, empty = where.clamp_min(0), where < 0
    # Zero, or nan when any entry is not finite: all ranks must learn of it, whatever was chosen.
    alarm = waiting.sum() * 0
    chosen = waiting[at].masked_fill_(empty, 0) + alarm
    sent = rounded(chosen if scale is None else chosen * scale, wire)
    gone = chosen if wire == chosen.dtype else _unscaled(sent.to(chosen.dtype), scale)
    # Subtracting, not overwriting: the empty places all point at entry 0 and must leave it alone.
    waiting.index_add_(0, at, gone, alpha=-1)
    velocity.index_add_(0, at, velocity[at].masked_fill_(empty, 0), alpha=-1)
    return where, sent


def rounded(values: Tensor, wire: torch.dtype) -> Tensor:
    """The values in the format of the wire, the too large ones as its largest number."""
    if wire == values.dtype:
        return values
    largest = torch.finfo(wire).max
    return values.clamp(-largest, largest).to(wire)


def _unscaled(values: Tensor, scale: Tensor | None) -> Tensor:
    return values if scale is None else values / scale


def index_type(count: int) -> torch.dtype:
    """The smallest format that numbers ``count`` entries."""
    return torch.int32 if count <= torch.iinfo(torch.int32).max else torch.int64


def pack(where: Tensor, values: Tensor) -> Tensor:
    """One message of bytes: all indices, then all values."""
    parts = [where.view(torch.uint8), values.view(torch.uint8)]
    missing = -sum(part.numel() for part in parts) % SEGMENT
    return torch.cat([*parts, parts[0].new_zeros(missing)])


def unpack(
    messages: Tensor, count: int, indices: torch.dtype, values: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The indices and values of messages of ``count`` entries, one row per message."""
    middle = count * indices.itemsize
    end = middle + count * values.itemsize
    # Copies: a row may start where the format does not allow a view.
    heads = messages[:, :middle].contiguous().view(indices)
    return heads, messages[:, middle:end].contiguous().view(values)


def gather(message: Tensor, group: dist.ProcessGroup) -> Future[Tensor]:
    """The messages of all ranks, one row each."""
    rows = message.new_empty(dist.get_world_size(group), message.numel())
    work = _all_gather(rows.view(-1), message, group=group, async_op=True)
    future: Future[Tensor] = work.get_future().then(lambda done: rows)
    return future


def add_mean(dense: Tensor, where: Tensor, values: Tensor) -> None:
    """Add the mean of the rows of ``values`` to the entries that ``where`` names.

    Row after row: within a row no index comes twice, so the order of additions, and with it the
    last bit of the sum, is the same on all ranks.
    """
    shares = values.to(dense.dtype) / len(values)
    for row, part in zip(where, shares, strict=True):
        dense.index_add_(0, row.clamp_min(0), part.masked_fill(row < 0, 0))


def exchange(
    buffer: Tensor,
    sent: Sequence[Sent],
    others: Sequence[slice],
    average: Average,
    group: dist.ProcessGroup,
) -> Future[Tensor]:
    """Fill pieces with the mean of what all ranks sent of them, and the other pieces as usual."""
    where = torch.cat([_in_buffer(one) for one in sent]).to(index_type(buffer.numel()))
    values = torch.cat([one.values for one in sent])
    futures: list[Future[Any]] = [gather(pack(where, values), group)]
    if others:
        futures.append(average(torch.cat([buffer[piece] for piece in others])))
    pieces, shape = [one.piece for one in sent], (values.numel(), where.dtype, values.dtype)

    @torch.no_grad()  # a callback may run in any thread
    def fill(done: Future[list[Future[Any]]]) -> Tensor:
        # wait() costs nothing on the host here; it lets this stream see what the others wrote.
        messages, *averaged = (future.wait() for future in done.value())
        for piece in pieces:
            buffer[piece].zero_()
        add_mean(buffer, *unpack(messages, *shape))
        if averaged:
            sizes = [piece.stop - piece.start for piece in others]
            for piece, mean in zip(others, averaged[0].split(sizes), strict=True):
                buffer[piece] = mean
        return buffer

    future: Future[Tensor] = collect_all(futures).then(fill)
    return future


def _in_buffer(sent: Sent) -> Tensor:
    return torch.where(sent.where < 0, sent.where, sent.where + sent.piece.start)

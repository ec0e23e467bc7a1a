"""Gradients as a few large entries: choose them, pack them, gather them, add them up.

A bucket of tensors is handled as one flat tensor, so that the number of operations does not grow
with the number of tensors. Nothing here makes the host wait for the device.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from fleetx.comm.gathering import gather_later
from fleetx.comm.reduction import Average

SAMPLE = 2**14
"""How many numbers of a tensor are looked at to find out how large its largest are."""

SEGMENT = 8
"""A message is a multiple of this many bytes."""


class Sizes(NamedTuple):
    """The tensors that lie one after the other in a flat one, and how many entries each may send.

    Every tensor has at least ``SAMPLE`` numbers.
    """

    numbers: tuple[int, ...]
    wanted: tuple[int, ...]


def sizes(numbers: Sequence[int], sparsity: float) -> Sizes:
    """The sizes when that part of each tensor stays at home."""
    return Sizes(tuple(numbers), tuple(share(count, sparsity) for count in numbers))


def share(count: int, sparsity: float) -> int:
    """How many of ``count`` entries travel when that part of them stays at home."""
    return max(1, int(count * (1 - sparsity)))


class _Table(NamedTuple):
    """What can be known before the values are: one row or entry per tensor."""

    numbers: Tensor
    ends: Tensor
    wanted: Tensor
    slots: Tensor
    """Where a tensor's part of the message begins."""
    sample: Tensor
    """Places spread evenly over each tensor, but out of step with its rows and columns."""


class Tables:
    """What was made once for each bucket, because making it stops the device.

    Work that is recorded reads it at each replay, so it stays as long as whoever holds this.
    """

    def __init__(self) -> None:
        self._tables: dict[tuple[Sizes, torch.device], _Table] = {}
        self._shifts: dict[tuple[Sizes, tuple[int, ...], torch.device], Tensor] = {}

    def of(self, sizes: Sizes, device: torch.device) -> _Table:
        """What is known of tensors that lie one after the other."""
        key = sizes, device
        if key not in self._tables:
            self._tables[key] = _table(*key)
        return self._tables[key]

    def shifts(self, sizes: Sizes, starts: tuple[int, ...], device: torch.device) -> Tensor:
        """For each place of the message, how far its tensor lies from there in a buffer."""
        key = sizes, starts, device
        if key not in self._shifts:
            self._shifts[key] = _shifts(*key)
        return self._shifts[key]


def _table(sizes: Sizes, device: torch.device) -> _Table:
    numbers, wanted = torch.tensor(sizes.numbers), torch.tensor(sizes.wanted)
    return _Table(
        numbers=numbers.to(device),
        ends=numbers.cumsum(0).to(device),
        wanted=wanted.to(device),
        slots=(wanted.cumsum(0) - wanted).to(device),
        sample=_sample(sizes.numbers, device),
    )


def _sample(counts: tuple[int, ...], device: torch.device) -> Tensor:
    numbers = torch.tensor(counts)[:, None]
    spots = torch.arange(SAMPLE, dtype=torch.float64)
    spots = (spots + (spots * (math.sqrt(5) - 1) / 2).frac()) / SAMPLE
    return (numbers.cumsum(0) - numbers + (spots * numbers).long()).to(device)


def choose(values: Tensor, sizes: Sizes, tables: Tables) -> Tensor:
    """Where the largest magnitudes of every tensor are; -1 for places of the message left empty.

    A sample says from where on entries are candidates, and the largest of these are chosen. So the
    choice is nearly always the exact one, and never holds more.
    """
    if sizes.wanted == sizes.numbers:
        return torch.arange(values.numel(), device=values.device)
    table = tables.of(sizes, values.device)
    # Of the sample we expect ``rank`` entries to be wanted, give or take its square root.
    rank = max(1.0, SAMPLE * max(w / n for n, w in zip(*sizes, strict=True)))
    aim = min(SAMPLE, math.ceil(rank + 3 * math.sqrt(rank)))
    most = min(SAMPLE, aim + 4 * math.sqrt(aim))
    magnitudes = values.abs()
    sample = magnitudes[table.sample]
    top = sample.topk(aim, dim=1, sorted=False)
    # A zero is never worth a place, also where most entries are zero.
    threshold = top.values.amin(1).clamp_(min=torch.finfo(values.dtype).tiny)
    room = math.ceil(values.numel() * most / SAMPLE)
    if len(sizes.numbers) == 1:
        found = torch.nonzero_static(magnitudes >= threshold, size=room, fill_value=-1).squeeze(1)
        size = magnitudes[found.clamp_min(0)].masked_fill_(found < 0, -1)
        return found[size.topk(sizes.wanted[0], sorted=False).indices]
    # Where very many are equal, they would take the room of the tensors behind: of these, only
    # those in the sample are candidates.
    crowded = (sample >= threshold[:, None]).sum(1) > most
    equals = crowded[:, None] & (top.values == threshold[:, None])
    extra = table.sample.gather(1, top.indices).masked_fill_(~equals, -1)
    above = threshold.nextafter(torch.full_like(threshold, math.inf))
    threshold = torch.where(crowded, above, threshold)
    threshold = threshold.repeat_interleave(table.numbers, output_size=values.numel())
    found = torch.nonzero_static(magnitudes >= threshold, size=room, fill_value=-1).squeeze(1)
    found = torch.cat([extra.flatten(), found])
    return _largest(found, magnitudes[found.clamp_min(0)], sizes, table)


def _largest(found: Tensor, magnitudes: Tensor, sizes: Sizes, table: _Table) -> Tensor:
    """The message's places, filled with the largest candidates of every tensor."""
    tensor = torch.bucketize(found, table.ends, right=True).masked_fill_(found < 0, len(table.ends))
    # Ordered by tensor, then by falling magnitude: the bits of floats above 0 order like integers.
    key = (tensor << 32) - magnitudes.view(torch.int32)
    order = key.sort(stable=True).indices
    tensor = tensor[order]
    first = torch.searchsorted(tensor, torch.arange(len(table.ends) + 1, device=tensor.device))
    within = torch.arange(len(tensor), device=tensor.device) - first[tensor]
    last = sum(sizes.wanted)  # one place more than the message has, for what does not fit
    real = tensor.clamp_max(len(table.ends) - 1)
    fits = (within < table.wanted[real]) & (tensor == real)
    slot = (table.slots[real] + within).masked_fill_(~fits, last)
    return found.new_full((last + 1,), -1).scatter_(0, slot, found[order])[:last]


def placed(where: Tensor, sizes: Sizes, starts: tuple[int, ...], tables: Tables) -> Tensor:
    """The places again, in a buffer in which the tensors start at ``starts``."""
    shifted = where + tables.shifts(sizes, starts, where.device)
    return torch.where(where < 0, where, shifted)


def _shifts(sizes: Sizes, starts: tuple[int, ...], device: torch.device) -> Tensor:
    numbers = torch.tensor(sizes.numbers)
    shifts = torch.tensor(starts) - (numbers.cumsum(0) - numbers)
    return shifts.repeat_interleave(torch.tensor(sizes.wanted)).to(device)


def take(
    velocity: Tensor,
    waiting: Tensor,
    sizes: Sizes,
    tables: Tables,
    *,
    scale: Tensor | None,
    wire: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Move the largest entries of ``waiting`` out of it: where they were, and what to send.

    What is sent is multiplied by ``scale`` and rounded to ``wire``; what rounding loses goes on
    waiting. The velocity of an entry that is sent starts again at zero.
    """
    where = choose(waiting, sizes, tables)
    at, empty = where.clamp_min(0), where < 0
    # Zero, or nan when any entry is not finite: all ranks must learn of it, whatever was chosen.
    alarm = waiting.sum() * 0
    chosen = waiting[at].masked_fill_(empty, 0) + alarm
    sent = _rounded(chosen if scale is None else chosen * scale, wire)
    gone = chosen
    if wire != chosen.dtype:
        gone = sent.to(chosen.dtype) if scale is None else sent.to(chosen.dtype) / scale
    # Subtracting, not overwriting: the empty places all point at entry 0 and must leave it alone.
    waiting.index_add_(0, at, gone, alpha=-1)
    velocity.index_add_(0, at, velocity[at].masked_fill_(empty, 0), alpha=-1)
    return where, sent


def _rounded(values: Tensor, wire: torch.dtype) -> Tensor:
    """The values in the format of the wire, the too large ones as its largest number."""
    if wire == values.dtype:
        return values
    largest = torch.finfo(wire).max
    return values.clamp(-largest, largest).to(wire)


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
    # Copies: the values may start where their format does not allow a view.
    heads = messages[:, :middle].contiguous().view(indices)
    return heads, messages[:, middle:end].contiguous().view(values)


def gather(message: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Future[Tensor]]:
    """The messages of all ranks, one row each, and what says when they are there."""
    rows = message.new_empty(dist.get_world_size(group), message.numel())
    return rows, gather_later(rows.view(-1), message, group)


def add_mean(dense: Tensor, where: Tensor, values: Tensor) -> None:
    """Add the mean of the rows of ``values`` to the entries that ``where`` names.

    Row after row: within a row no index comes twice, so the order of additions, and with it the
    last bit of the sum, is the same on all ranks. An empty place holds zero, or nan as an alarm.
    """
    shares = values.to(dense.dtype) / len(values)
    for row, part in zip(where.clamp_min(0), shares, strict=True):
        dense.index_add_(0, row, part)


def exchange(
    buffer: Tensor,
    where: Tensor,
    values: Tensor,
    *,
    sent: Sequence[slice],
    others: Sequence[slice],
    average: Average,
    group: dist.ProcessGroup,
) -> Future[Tensor]:
    """Fill the pieces ``sent`` with the mean of what all ranks send of them, ``others`` as usual.

    ``where`` are places in the buffer; -1 for those left empty.
    """
    where = where.to(index_type(buffer.numel()))
    messages, gathered = gather(pack(where, values), group)
    last = average(torch.cat([buffer[piece] for piece in others])) if others else gathered
    shape = values.numel(), where.dtype, values.dtype

    @torch.no_grad()  # a callback may run in any thread
    def fill(done: Future[Any]) -> Tensor:
        # The exchange that began first is waited for inside of the last one's end: it is under way
        # by then, so that nobody waits for what a busy thread has not begun. For a GPU, wait() lets
        # this stream see what the other one wrote, and costs nothing on the host. A future of both
        # would leave a stream of its own beside, which no recording may end with.
        mean = done.wait()
        gathered.wait()
        for piece in sent:
            buffer[piece].zero_()
        if others:
            lengths = [piece.stop - piece.start for piece in others]
            for piece, part in zip(others, mean.split(lengths), strict=True):
                buffer[piece] = part
        add_mean(buffer, *unpack(messages, *shape))
        return buffer

    future: Future[Tensor] = last.then(fill)
    return future

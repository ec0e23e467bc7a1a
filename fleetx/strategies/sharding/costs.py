"""What sharding keeps on a rank and what it sends, by the sizes of a model and of the mesh."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from fleetx.plan.exchange import Exchange, Memory, half_ring_bytes, ring_bytes
from fleetx.plan.pieces import Piece, Pieces, size_of
from fleetx.plan.share import Share, statistics, upwards
from fleetx.strategies.sharding.fully_sharded import units_of


def spread(
    share: Share, *, entries: Sequence[str], megabytes: float, stage: int, waits: bool
) -> Share:
    """What a rank holds when each has its rows of every parameter.

    Args:
        share: what it held of whole ones.
        entries: names of submodules that end a unit.
        megabytes: the size of a unit if there are none.
        stage: what is spread all the time.
        waits: whole gradients wait for the batch that ends in an update.
    """
    decided = f"sharding_configs['stage'] = {stage}"
    whole = size_of(share.gradients)
    spreads = replace(share, held=_rows(share, share.held), gradients=_rows(share, share.gradients))
    if not share.parameters:
        return spreads
    sizes = _unit_sizes(share, entries, megabytes)
    together = max((a + b for a, b in pairwise([0, *sizes[:-1], 0])), default=0) + sizes[-1]
    gathered = Memory(
        what="parameters of other ranks, gathered while layers run",
        kept_bytes=(together if stage == 3 else sum(sizes)) - size_of(spreads.held),
        decided_by=decided,
        passing=True,
    )
    several = share.run.batches * share.run.micro_batches > 1
    pending = Memory(
        what="whole gradients that wait for the update",
        kept_bytes=whole if waits and several else 0,
        decided_by=decided,
        passing=True,
    )
    return spreads.with_memory(replace(gathered, kept_bytes=max(0, gathered.kept_bytes)), pending)


def _rows(share: Share, pieces: Pieces) -> Pieces:
    ranks, at = share.mesh["sharding"], share.at("sharding")
    return {name: piece.cut(0, ranks, at) for name, piece in pieces.items()}


def _unit_sizes(share: Share, entries: Sequence[str], megabytes: float) -> list[int]:
    """What is gathered together, in its order; at the end what belongs to the model itself."""
    here = frozenset(share.parameters)
    key = "units", tuple(entries), megabytes, share.opened, share.whole, here
    units = share.subject.once(key, lambda: _units(share, entries, megabytes))
    every = {name: piece.size for name, piece in share.parameters.items()}
    sizes = [sum(every[name] for name in unit) for unit in units]
    return [*sizes, sum(every.values()) - sum(sizes)]


def _units(share: Share, entries: Sequence[str], megabytes: float) -> list[list[str]]:
    """The first names of parameters that are gathered together."""
    model = share.subject.shape
    opened, whole = (
        {model.get_submodule(path) for path in paths} for paths in (share.opened, share.whole)
    )
    named = model.named_parameters(remove_duplicate=False)
    every = {above for name, _ in named for above in upwards(name)}
    here = {above for name in share.parameters for above in upwards(name)}
    apart = every - here
    away = {module for path, module in model.named_modules() if path in apart}
    firsts = {parameter: name for name, parameter in model.named_parameters()}
    left, found = {*share.parameters}, []
    for unit in units_of(model, (away, opened), entries, megabytes, whole):
        names = {firsts[p] for module in unit.modules for p in module.parameters()} & left
        left -= names
        found.append(sorted(names))
    return found


def units_at_once(share: Share, entries: Sequence[str], megabytes: float) -> int:
    """How many units have parameters on this rank."""
    if not share.parameters:
        return 0
    return sum(1 for size in _unit_sizes(share, entries, megabytes) if size)


def traffic(share: Share, *, stage: int, at_updates: bool, units: int) -> tuple[Exchange, ...]:
    """The exchanges of a batch.

    Args:
        share: what a rank holds.
        stage: what is spread.
        at_updates: gradients wait for the batch that ends in an update.
        units: what is gathered at once.
    """
    ranks, copies = share.mesh["sharding"], share.mesh["dp"]
    if ranks == 1:
        return ()
    every = [piece.padded(ranks) for piece in share.parameters.values()]
    trained = [piece for piece in every if piece.trained]
    decided, again = f"sharding_configs['stage'] = {stage}", stage == 3
    forwards = share.run.batches * share.run.micro_batches
    aside = share.subject.device.type != "cpu"  # where FSDP waits for each of them (through_gloo)
    whole = sum(piece.size for piece in every) * (2 if again else 1)
    gathered = Exchange(
        collective="all-gather",
        what="parameters",
        when="in each forward and again in each backward" if again else "in each forward",
        sent_bytes=half_ring_bytes(whole, ranks),
        moved_bytes=whole,
        pieces=units * (2 if again else 1),
        times=forwards,
        decided_by=decided,
        axis="sharding",
        beside=aside,
    )
    size, wide = _sizes(trained)
    scattered = Exchange(
        collective="reduce-scatter",
        what="gradients",
        when="in the backward of each update" if at_updates else "in each backward",
        sent_bytes=half_ring_bytes(size, ranks),
        wide_bytes=half_ring_bytes(wide, ranks),
        moved_bytes=size,
        pieces=units,
        times=1 if at_updates else forwards,
        decided_by=decided,
        axis="sharding",
        beside=aside,
    )
    summed = replace(
        scattered,
        collective="all-reduce",
        what="each rank's share of the gradients",
        sent_bytes=ring_bytes(size // ranks, copies),
        wide_bytes=ring_bytes(wide // ranks, copies),
        moved_bytes=size // ranks,
        decided_by=f"dp_degree = {copies}",
        axis="dp",
    )
    both = (summed,) if copies > 1 else ()
    return (gathered, scattered, *both, *statistics(share, "dp x sharding"))


def _sizes(pieces: Sequence[Piece]) -> tuple[int, int]:
    """In bytes, all of them and those that are float32."""
    wide = sum(piece.size for piece in pieces if piece.dtype == torch.float32)
    return sum(piece.size for piece in pieces), wide

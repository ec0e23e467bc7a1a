"""Who keeps whom waiting: what the ranks of a job tell of themselves, held against each other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleetx.launch.out_of_step import batches_of, differences, is_past
from fleetx.launch.seen import Group, Seen, Verdict, kind_of, named


@dataclass(frozen=True)
class _Wait:
    """One rank waits for others."""

    where: str
    others: frozenset[int]


def judge(seen: Mapping[int, Seen], limit: float) -> Verdict | None:
    """Who keeps others waiting for longer than the limit; None when nobody does for certain."""
    stopped = {rank for rank, each in seen.items() if _stands(each, limit)}
    if (found := _different(seen, stopped)) is not None:
        return found
    waits = _waits(seen, stopped)
    if not waits:
        return None
    wanted = frozenset().union(*(wait.others for wait in waits.values()))
    culprits = sorted(wanted - waits.keys())
    seconds = max(seen[rank].still for rank in waits)
    if culprits:
        sentence = f"{_blame(seen, culprits)}; {_waiters(waits)}{_advice(seen, culprits, waits)}"
        culprits = sorted({*culprits, *_passed(seen, culprits, waits)})
    else:  # a circle: whoever waits is waited for
        culprits = sorted(waits)
        sentence = _circle(seen, waits)
    return Verdict(tuple(culprits), tuple(sorted(waits)), seconds, sentence)


def ended_early(seen: Mapping[int, Seen], failed: int) -> Verdict | None:
    """Ranks that ended well while the one that failed, of a lost connection, needed them still."""
    ended = frozenset(rank for rank, each in seen.items() if each.state == "ended")
    if failed not in seen or not (wait := _behind(seen, failed, ended)):
        return _different(seen, set(seen) - ended) if failed in seen else None
    culprits = sorted(wait.others)
    advice = _advice(seen, culprits, {failed: wait})
    sentence = f"{_blame(seen, culprits)}; rank {failed} was in {wait.where}{advice}"
    return Verdict(tuple(culprits), (failed,), 0.0, sentence)


def meanwhile(seen: Mapping[int, Seen]) -> str:
    """What ranks were doing when another one failed; alike ones are told of together."""
    alike: dict[str, list[int]] = {}
    for rank, each in sorted(seen.items()):
        if told := _was(each):
            alike.setdefault(told, []).append(rank)
    return "; ".join(f"{named(ranks)} {told}" for told, ranks in alike.items())


def _was(seen: Seen) -> str:
    if seen.state == "ended":
        return f"had ended with code 0 after {batches_of(seen.batches)}"
    if seen.state == "failed" and not seen.broken:
        return f"failed later{_at(seen)}{_step(seen)}"
    found = [(name, group) for name, group in seen.groups.items() if group.open]
    if found:
        return f"waited in {_collective(seen, *found[0])}{_step(seen)}"
    if seen.waits:
        return f"waited in {_exchange(seen, seen.waits)}{_step(seen)}"
    if seen.meeting:
        return f"waited in {seen.meeting}{_step(seen)}"
    doing = f" {seen.doing}" if seen.doing else ""
    return f"was{doing}{_at(seen)}{_step(seen)}" if doing or seen.place else ""


def _at(seen: Seen) -> str:
    return f" at {seen.place}" if seen.place else ""


def stacks(seen: Mapping[int, Seen]) -> str:
    """The Python stack of every rank; ranks that stand at the same place are told of once."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank, each in sorted(seen.items()):
        if each.state == "running":
            alike.setdefault(each.stack, []).append(rank)
    parts = []
    for stack, ranks in alike.items():
        lines = stack or ("it goes on",)
        parts += [f"stack of {named(ranks)}, innermost call first:", *(f"    {x}" for x in lines)]
    return "\n".join(parts)


def _stands(seen: Seen, limit: float) -> bool:
    return seen.state != "running" or max(seen.still, seen.silent) >= limit


def _waits(seen: Mapping[int, Seen], stopped: set[int]) -> dict[int, _Wait]:
    """Ranks that stand still because of others that do, and where."""
    found: dict[int, _Wait] = {}
    for rank in sorted(stopped):
        if seen[rank].state == "running" and (wait := _behind(seen, rank, stopped)):
            found[rank] = wait
    for rank in sorted(stopped - found.keys()):
        if seen[rank].state == "running" and (wait := _beside(seen, rank, stopped, found)):
            found[rank] = wait
    return found


def _behind(seen: Mapping[int, Seen], rank: int, among: Iterable[int]) -> _Wait | None:
    """Ranks that have not begun what this one has begun."""
    own, others = seen[rank], set(among) - {rank}
    for name, group in own.groups.items():
        late = [r for r in others & set(group.ranks) if seen[r].group(name).made < group.open]
        if group.open and late:
            return _Wait(_collective(own, name, group), frozenset(late))
    late = [r for r in others if own.meeting and seen[r].meetings < own.meetings]
    return _Wait(own.meeting, frozenset(late)) if late else None


def _beside(
    seen: Mapping[int, Seen], rank: int, stopped: set[int], known: Mapping[int, _Wait]
) -> _Wait | None:
    """The same for exchanges that nobody counts: those of two ranks, and of a beginning job."""
    own = seen[rank]
    if not own.waits or any(group.open for group in own.groups.values()):
        return None
    met = [group.ranks for group in own.groups.values() if group.pairs]
    partners = {other for ranks in met for other in ranks} if met else set(seen)
    free = [r for r in stopped & partners - {rank} if not seen[r].waits and r not in known]
    others = free or [r for r in partners & known.keys() if rank in known[r].others]
    return _Wait(_exchange(own, own.waits), frozenset(others)) if others else None


def _different(seen: Mapping[int, Seen], stopped: set[int]) -> Verdict | None:
    """Ranks whose collectives of the same group and number are not the same."""
    for rank in sorted(stopped):
        for name, group in seen[rank].groups.items():
            for other in sorted(stopped & set(group.ranks) - {rank}):
                against = seen[other].group(name)
                if not (group.open and against.made >= group.open):
                    continue
                for at in sorted(group.recent.keys() & against.recent.keys()):
                    if group.recent[at] != against.recent[at]:
                        return _out_of_order(seen, (rank, other), name, at)
    return None


def _out_of_order(
    seen: Mapping[int, Seen], pair: tuple[int, int], name: str, number: int
) -> Verdict:
    told = []
    for rank in pair:
        kind, shapes = seen[rank].group(name).recent[number]
        of = _owner(seen[rank], name)
        told.append(f"rank {rank} {_article(kind)} of {shapes}{of}{_step(seen[rank])}")
    sentence = (
        f"{named(pair)} are out of order: as number {number} of the same group of ranks "
        f"{' and '.join(told)}. Every rank must make the same exchanges in the same order, with "
        "tensors of the same shapes"
    )
    seconds = max(seen[rank].still for rank in pair)
    return Verdict(tuple(sorted(pair)), tuple(sorted(pair)), seconds, sentence + differences(seen))


def _article(kind: str) -> str:
    return f"made {'an' if kind[:1] in 'aeiou' else 'a'} {kind}"


def _step(seen: Seen) -> str:
    """A script that does not use fleetx has no steps that could be told."""
    return f" (step {seen.batches})" if seen.doing else ""


def _blame(seen: Mapping[int, Seen], culprits: Sequence[int]) -> str:
    return "; ".join(_culprit(rank, seen[rank]) for rank in culprits)


def _culprit(rank: int, seen: Seen) -> str:
    if seen.state == "ended":
        return f"rank {rank} ended with code 0 after {batches_of(seen.batches)}"
    if seen.state == "failed":
        return f"rank {rank} failed"
    if seen.silent:
        return f"rank {rank} has given no sign for {seen.silent:.0f} s ({seen.asleep})"
    doing = f" {seen.doing}" if seen.doing else ""
    return f"rank {rank} has been{doing}{_at(seen)} for {seen.still:.0f} s{_step(seen)}"


def _waiters(waits: Mapping[int, _Wait]) -> str:
    """`ranks 0, 2 wait for it in X, rank 3 in Y`."""
    places: dict[str, list[int]] = {}
    for rank, wait in waits.items():
        places.setdefault(wait.where, []).append(rank)
    told: list[str] = []
    for where, ranks in places.items():
        verb = "" if told else f" wait{'s' * (len(ranks) == 1)} for it"
        told.append(f"{named(ranks)}{verb} in {where}")
    return ", ".join(told)


def _circle(seen: Mapping[int, Seen], waits: Mapping[int, _Wait]) -> str:
    told = [
        f"rank {rank} in {wait.where} at {seen[rank].place}{_step(seen[rank])}"
        for rank, wait in waits.items()
    ]
    counts = differences({rank: seen[rank] for rank in waits})
    why = counts or ". They make the same exchanges in a different order"
    return f"{named(waits)} wait for each other: {', '.join(told)}{why}"


def _advice(seen: Mapping[int, Seen], culprits: Sequence[int], waits: Mapping[int, _Wait]) -> str:
    """Why they do not meet, if it is not that somebody is slow."""
    ended = any(seen[rank].state == "ended" for rank in culprits)
    if ended or _passed(seen, culprits, waits):
        return differences({rank: seen[rank] for rank in sorted({*culprits, *waits})})
    return ""


def _passed(
    seen: Mapping[int, Seen], culprits: Sequence[int], waits: Mapping[int, _Wait]
) -> list[int]:
    """Ranks that wait for one that is already past them."""
    return [
        rank
        for rank, wait in waits.items()
        if any(is_past(seen[one], seen[rank]) for one in wait.others.intersection(culprits))
    ]


def _collective(seen: Seen, name: str, group: Group) -> str:
    kind = group.recent.get(group.open, ("", ""))[0] or "exchange"
    return f"the {kind}{_owner(seen, name)}"


def _exchange(seen: Seen, function: str) -> str:
    place = f" of {seen.strategy}" if seen.strategy else f" at {seen.place}"
    return f"the {kind_of(function)}{place}"


def _owner(seen: Seen, group: str) -> str:
    strategy = seen.strategy or seen.owners.get(group, "")
    return f" of {strategy}" if strategy else _at(seen)

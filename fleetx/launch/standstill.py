"""Who keeps whom waiting: what the ranks of a job tell of themselves, held against each other."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_KINDS = {
    "allreduce": "all-reduce",
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "alltoall": "all-to-all",
    "send": "transfer",
    "recv": "transfer",
    "isend": "transfer",
    "irecv": "transfer",
    "batch_isend_irecv": "transfer",
    "_wait_batch_p2p": "transfer",
}
_DECORATION = ("_base", "_into_tensor", "_tensor", "_single", "_coalesced", "_object")


@dataclass(frozen=True)
class Group:
    """A process group, as one of its ranks knows it."""

    called: str = ""
    ranks: tuple[int, ...] = ()
    made: int = 0
    """Collectives that the rank has begun in it."""
    open: int = 0
    """The number of the first one that is not over; 0 when all are."""
    pairs: int = 0
    """Exchanges between two ranks."""
    recent: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """The latest collectives by their numbers: kind, and shapes."""

    @staticmethod
    def of(told: Mapping[str, Any]) -> "Group":
        """From what a worker writes."""
        recent = {int(at): (_kind(kind), str(sizes)) for at, kind, sizes in told.get("recent", ())}
        return Group(
            str(told.get("called", "")),
            tuple(told.get("ranks", ())),
            int(told.get("made", 0)),
            int(told.get("open", 0)),
            int(told.get("pairs", 0)),
            recent,
        )


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of one rank."""

    state: str = "running"
    """Or "ended", with code 0, or "failed"."""
    broken: bool = False
    """Whether it failed in an exchange."""
    still: float = 0.0
    """Seconds since it did anything new."""
    silent: float = 0.0
    """Seconds since it said anything; 0 as long as that is nothing to speak of."""
    asleep: str = ""
    """What the system says of a silent process."""
    doing: str = ""
    batches: int = 0
    meetings: int = 0
    meeting: str = ""
    place: str = ""
    waits: str = ""
    strategy: str = ""
    owners: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)
    stack: tuple[str, ...] = ()

    @staticmethod
    def of(told: Mapping[str, Any], now: float) -> "Seen":
        """From what a worker of this machine wrote, by the machine's clock."""
        names = (
            "state",
            "broken",
            "doing",
            "batches",
            "meetings",
            "meeting",
            "place",
            "waits",
            "strategy",
        )
        return Seen(
            **{name: told[name] for name in names if name in told},
            still=now - float(told["still"]),
            silent=now - float(told["written"]),
            owners=told.get("owners", {}),
            notes=told.get("notes", {}),
            groups={name: Group.of(group) for name, group in told.get("groups", {}).items()},
            stack=tuple(told.get("stack", ())),
        )

    def group(self, name: str) -> Group:
        """A group of which the rank may not know yet."""
        return self.groups.get(name, Group())


@dataclass(frozen=True)
class Verdict:
    """Ranks that others wait for, in words."""

    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    seconds: float
    """How long somebody has waited."""
    sentence: str


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


def named(ranks: Iterable[int]) -> str:
    """`rank 1`, or `ranks 0, 2, 3`."""
    listed = sorted(ranks)
    return f"rank{'s' * (len(listed) != 1)} {', '.join(map(str, listed))}"


def to_json(seen: Mapping[int, Seen]) -> str:
    """For the launcher of another machine."""
    return json.dumps({str(rank): _plain(each) for rank, each in seen.items()})


def from_json(text: str) -> dict[int, Seen]:
    """The inverse of `to_json`."""
    told: dict[str, dict[str, Any]] = json.loads(text)
    return {int(rank): _unplain(each) for rank, each in told.items()}


def _plain(seen: Seen) -> dict[str, Any]:
    values = dict(vars(seen))
    values["groups"] = {
        name: {**vars(g), "recent": [[at, *what] for at, what in g.recent.items()]}
        for name, g in seen.groups.items()
    }
    return values


def _unplain(told: dict[str, Any]) -> Seen:
    groups = {name: Group.of(group) for name, group in told["groups"].items()}
    return Seen(**told | {"groups": groups, "stack": tuple(told["stack"])})


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
    return Verdict(tuple(sorted(pair)), tuple(sorted(pair)), seconds, sentence + _counts(seen))


def _article(kind: str) -> str:
    return f"made {'an' if kind[:1] in 'aeiou' else 'a'} {kind}"


def _blame(seen: Mapping[int, Seen], culprits: Sequence[int]) -> str:
    return "; ".join(_culprit(rank, seen[rank]) for rank in culprits)


def _culprit(rank: int, seen: Seen) -> str:
    if seen.state == "ended":
        return f"rank {rank} ended with code 0 after {_batches(seen.batches)}"
    if seen.state == "failed":
        return f"rank {rank} failed"
    if seen.silent:
        return f"rank {rank} has given no sign for {seen.silent:.0f} s ({seen.asleep})"
    doing = f" {seen.doing}" if seen.doing else ""
    place = f" at {seen.place}" if seen.place else ""
    return f"rank {rank} has been{doing}{place} for {seen.still:.0f} s{_step(seen)}"


def _step(seen: Seen) -> str:
    """A script that does not use fleetx has no steps that could be told."""
    return f" (step {seen.batches})" if seen.doing else ""


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
    counts = _counts({rank: seen[rank] for rank in waits})
    why = counts or ". They make the same exchanges in a different order"
    return f"{named(waits)} wait for each other: {', '.join(told)}{why}"


def _advice(seen: Mapping[int, Seen], culprits: Sequence[int], waits: Mapping[int, _Wait]) -> str:
    if any(seen[rank].state == "ended" for rank in culprits):
        return _counts({rank: seen[rank] for rank in (*culprits, *waits)})
    return ""


def _counts(seen: Mapping[int, Seen]) -> str:
    """What differs between ranks that do not meet, and must not."""
    for topic in sorted({topic for each in seen.values() for topic in each.notes}):
        facts: dict[str, list[int]] = {}
        for rank, each in seen.items():
            facts.setdefault(each.notes.get(topic, "none"), []).append(rank)
        if len(facts) > 1:
            told = [f"{fact} on {named(ranks)}" for fact, ranks in facts.items()]
            return f". They differ in {topic}: {', '.join(told)}"
    numbers = sorted({each.batches for each in seen.values()})
    if len(numbers) < 2:
        return ""
    told = [f"rank {rank} has begun {_batches(each.batches)}" for rank, each in seen.items()]
    return f". {', '.join(told)}: all ranks must make the same number of batches"


def _batches(number: int) -> str:
    return f"{number} batch{'es' * (number != 1)}"


def _collective(seen: Seen, name: str, group: Group) -> str:
    kind = group.recent.get(group.open, ("", ""))[0] or "exchange"
    return f"the {kind}{_owner(seen, name)}"


def _exchange(seen: Seen, function: str) -> str:
    place = f" of {seen.strategy}" if seen.strategy else f" at {seen.place}"
    return f"the {_kind(function)}{place}"


def _owner(seen: Seen, group: str) -> str:
    strategy = seen.strategy or seen.owners.get(group, "")
    return f" of {strategy}" if strategy else f" at {seen.place}" if seen.place else ""


def _kind(function: str) -> str:
    plain = function.removeprefix("nccl:")
    if plain not in _KINDS:
        plain = plain.strip("_")
        for ending in _DECORATION:
            plain = plain.removesuffix(ending)
    return _KINDS.get(plain, plain.replace("_", "-"))

"""Ranks that are not at the same batch where they should be."""

from collections.abc import Mapping

from fleetx.launch.seen import Seen, named


def differences(seen: Mapping[int, Seen]) -> str:
    """What differs between ranks that do not meet, and must not."""
    for topic in sorted({topic for each in seen.values() for topic in each.notes}):
        facts: dict[str, list[int]] = {}
        for rank, each in seen.items():
            facts.setdefault(each.notes.get(topic, "none"), []).append(rank)
        if len(facts) > 1:
            told = [f"{fact} on {named(ranks)}" for fact, ranks in facts.items()]
            return f". They differ in {topic}: {', '.join(told)}"
    if len({each.batches for each in seen.values()}) > 1:
        told = [f"rank {rank} has begun {batches_of(one.batches)}" for rank, one in seen.items()]
        return f". {', '.join(told)}: all ranks must make the same number of batches"
    if len({each.calls for each in seen.values()}) > 1:
        told = [
            f"rank {rank} has called the model {_times(one.calls)} and ended "
            f"{batches_of(one.ended)}"
            for rank, one in seen.items()
        ]
        return f". {', '.join(told)}: every rank must end each batch, with minimize() or step()"
    return ""


def batches_of(number: int) -> str:
    """In words."""
    return f"{number} batch{'es' * (number != 1)}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def is_past(one: Seen, other: Seen) -> bool:
    """Whether a rank is inside of a batch that comes after what the other one is at.

    A rank that others wait for has not come as far as they have, unless somebody has left out a
    batch, or the end of one.
    """
    inside = one.state == "running" and one.batches > one.ended
    return inside and one.ended >= other.ended and one.calls > other.calls


def different_updates(seen: Mapping[int, Seen]) -> str:
    """What to say of ranks that ended well after different numbers of updates.

    Only of those among which strategies exchange something at every update: workers of parameter
    servers, each of which updates when it likes, are no such ranks.
    """
    counts: dict[int, list[int]] = {}
    for rank, each in sorted(seen.items()):
        if each.state == "ended" and each.owners:
            counts.setdefault(each.updates, []).append(rank)
    if len(counts) < 2:
        return ""
    told = [f"{number} on {named(ranks)}" for number, ranks in sorted(counts.items())]
    return (
        f"the ranks ended well, but after different numbers of updates: {', '.join(told)}. "
        "Somewhere a rank has left out minimize() or step(), which all must make; their weights "
        "may not be the same any more"
    )

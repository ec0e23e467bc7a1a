"""What there is to say about the best plans: why none fits, and what would change the choice."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from typing_extensions import override

from fleetx.auto.cluster import Cluster
from fleetx.auto.estimate import estimate
from fleetx.auto.search import Planned, Search, ordered
from fleetx.auto.units import seconds, size
from fleetx.plan.mesh import in_words

CANDIDATES = 50
"""So many plans are held against changed clusters."""
LARGEST = 3
"""So many of what fills the memory are named."""


def shortage(best: Sequence[Planned]) -> str:
    """By how much the first of the best plans does not fit, and what takes the room.

    Empty if it fits.
    """
    found = best[0].estimate
    if found.fits:
        return ""
    largest = sorted(found.held.items(), key=lambda pair: -pair[1])[:LARGEST]
    taken = ", ".join(f"{what} {size(held)}" for what, held in largest)
    missing = found.memory - found.available
    return (
        f"No plan fits: the one that needs least ({told(best[0])}) takes "
        f"{size(found.memory)} on the fullest device, which has "
        f"{size(found.available)}, so {size(missing)} are missing; most of it is for "
        f"{taken}. Take {found.memory / found.available:.2g} times the memory or more devices, a "
        "smaller batch, or a smaller model."
    )


def told(planned: Planned) -> str:
    """A plan in a few words: its mesh and its strategies."""
    names = (strategy.name for strategy in planned.plan.strategies if not strategy.internal)
    return f"{in_words(planned.plan.mesh)} with {', '.join(names) or 'data parallel alone'}"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What would be chosen on a changed cluster."""

    what: str
    """How it is changed, in words."""
    before: Planned
    """The plan that is chosen now, and what it would take there."""
    after: Planned
    """The plan that would be chosen there."""

    @property
    def is_other(self) -> bool:
        """Whether another plan would win."""
        return self.before.choice != self.after.choice

    @override
    def __str__(self) -> str:
        took = seconds(self.after.estimate.seconds)
        if not self.is_other:
            return f"With {self.what} the same plan stays the best one, at {took} an update."
        before = self.before.estimate
        instead = seconds(before.seconds) if before.fits else "not fitting"
        return (
            f"With {self.what} the best plan would be {told(self.after)}: {took} an update "
            f"instead of {instead} with the present choice."
        )


def what_would_change(search: Search, best: Planned) -> list[Change]:
    """What would be chosen on clusters that differ in one thing, of the plans that were looked at.

    Args:
        search: that has found the best plans.
        best: the one that is chosen.
    """
    found = [planned for planned in search.looked_at.values() if planned is not None]
    fitting = ordered([one for one in found if one.estimate.fits])[: CANDIDATES // 2]
    faster = sorted(
        (one for one in found if not one.estimate.fits), key=lambda one: one.estimate.seconds
    )
    others = [one for one in (*fitting, *faster) if one.choice != best.choice][: CANDIDATES - 1]
    every = [(one, search.accounts(one)) for one in (best, *others)]
    changes = []
    for what, cluster in _changed(search.cluster):
        there = [
            replace(one, estimate=estimate(accounts, cluster, correction=search.correction))
            for one, accounts in every
        ]
        changes.append(Change(what=what, before=there[0], after=ordered(there)[0]))
    return changes


def _changed(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    device = cluster.device
    memory = replace(device, memory_gigabytes=2 * device.memory_gigabytes)
    yield "twice the memory on each device", replace(cluster, device=memory)
    half = replace(device, memory_gigabytes=device.memory_gigabytes / 2)
    yield "half the memory on each device", replace(cluster, device=half)
    rates = {name: 2 * rate for name, rate in device.teraflops.items()}
    yield (
        "twice the arithmetic on each device",
        replace(cluster, device=replace(device, teraflops=rates)),
    )
    for where, name in (("inside", "inside of machines"), ("outside", "between machines")):
        if where == "inside" and cluster.devices_per_node == 1:
            continue
        if where == "outside" and cluster.nodes == 1:
            continue
        link = getattr(cluster, where)
        for times, word in ((2.0, "twice"), (0.5, "half")):
            other = replace(link, gigabytes_per_second=times * link.gigabytes_per_second)
            yield f"{word} the speed {name}", replace(cluster, **{where: other})

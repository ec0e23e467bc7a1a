"""How long an update of a plan takes on a cluster, and what it needs: in numbers before it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from math import isnan

from fleetx.auto.cluster import Cluster, Device
from fleetx.auto.computing import SPREAD_UPDATE, chores_of, computing, pace_of
from fleetx.auto.exchanging import exchanges
from fleetx.auto.memory import held_by
from fleetx.plan.accounts import Accounts, Needs
from fleetx.plan.error import PlanError
from fleetx.plan.pace import Pace
from fleetx.plan.share import Share

KERNELS_OF_A_RULE = 8
"""That an optimizer starts for each parameter, where it goes one by one; about those of Adam."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What one update of a plan takes; times are seconds of the slowest rank."""

    forward: float
    backward: float
    """With what is computed once more."""
    waiting: float
    """For stages before and after it."""
    exchange: float
    """All exchanges, hidden or not."""
    exposed: float
    """What of them computing does not hide."""
    update: float
    to_host: float
    samples: float
    """Of all workers, in one update."""
    memory: float
    """Bytes of the rank that holds the most, at the moment when most is there."""
    available: float
    """Bytes of a device."""
    sent: float
    """Bytes that the busiest rank sends."""
    held: Mapping[str, float] = field(default_factory=dict)
    """What the memory is taken by, in bytes: parameters, gradients, and so on."""
    chores: Mapping[str, float] = field(default_factory=dict)
    """What the host does besides -> how often."""

    @property
    def seconds(self) -> float:
        """From one update to the next."""
        computing = self.forward + self.backward + self.waiting
        return computing + self.exposed + self.update + self.to_host

    @property
    def throughput(self) -> float:
        """Samples in a second."""
        return self.samples / self.seconds

    @property
    def bubble(self) -> float:
        """What part of computing a rank stands still."""
        return self.waiting / max(self.forward + self.backward + self.waiting, 1e-12)

    @property
    def fits(self) -> bool:
        """Whether every rank has room for it."""
        return self.memory <= self.available

    @property
    def binding(self) -> str:
        """What keeps the plan from being faster."""
        if not self.fits:
            return "memory"
        parts = {
            "computing": self.forward + self.backward,
            "exchanges": self.exposed,
            "waiting for other stages": self.waiting,
            "the update": self.update,
            "the way to the host": self.to_host,
        }
        return max(parts, key=lambda name: parts[name])


def estimate(accounts: Accounts, cluster: Cluster, *, correction: float = 1.0) -> Estimate:
    """What an update of the plan takes.

    Args:
        accounts: the plan, and what ranks hold and send under it; a batch is known.
        cluster: where it would run.
        correction: what a measured run took, in times of what is counted.

    Raises:
        PlanError: a batch of this size cannot be followed.
    """
    ranks = _looked_at(accounts)
    shares = [accounts.share(rank) for rank in ranks]
    _check_known(shares[0])
    needs = [accounts[rank] for rank in ranks]
    timed = [computing(share, accounts, cluster.device, correction) for share in shares]
    slowest = max(range(len(ranks)), key=lambda at: sum(timed[at]))
    forward, backward = timed[slowest]
    pace, device = pace_of(accounts, shares[slowest]), cluster.device
    exchange, exposed = exchanges(needs, accounts, cluster, backward)
    held = max(map(held_by, needs, shares), key=lambda parts: sum(parts.values()))
    return Estimate(
        forward=forward,
        backward=backward,
        waiting=_waiting(pace, forward + backward, device),
        exchange=exchange,
        exposed=exposed,
        update=max(map(partial(_update, device, pace), needs, shares)),
        to_host=_to_host(pace, device),
        samples=_samples(accounts),
        memory=sum(held.values()),
        held=held,
        available=device.memory_gigabytes * 1e9,
        sent=max(one.sent for one in needs),
        chores=chores_of(pace, shares[slowest]),
    )


def _looked_at(accounts: Accounts) -> list[int]:
    """One rank of each stage; of many stages the first two, one in the middle and the last."""
    stages = accounts.plan.mesh["pp"]
    each = accounts.workers // stages
    found = range(stages) if stages <= 4 else (0, 1, stages // 2, stages - 1)
    return [stage * each for stage in found]


def _samples(accounts: Accounts) -> float:
    mesh = accounts.plan.mesh
    batches = accounts.run.batches * mesh["dp"] * mesh["sharding"]
    return float(batches * accounts.subject.samples())


def _check_known(share: Share) -> None:
    if share.work is None:
        why = next(iter(share.unknown), "no batch is known")
        raise PlanError(f"how long a step takes is not known: {why}.")


def _waiting(pace: Pace, computed: float, device: Device) -> float:
    """Where workers share cores, those that wait leave theirs to the others."""
    return max(0.0, (1 + pace.idle) * computed / device.crowding - computed)


def _update(device: Device, pace: Pace, needs: Needs, share: Share) -> float:
    """As measured; else parameters, gradients and state are read, the first and last written."""
    trained = [piece for piece in share.held.values() if piece.trained]
    clock = share.subject.clock
    if clock is not None and share.rule is not None:
        each, number = clock.update(share.rule)
        if not isnan(each):
            numbers = sum(piece.numbers for piece in trained)
            return len(trained) * each + numbers * number + _dispatches(pace, device)
    state = needs.state or 0
    moved = 2 * needs.parameters + needs.gradients + 2 * state
    seconds = moved / (device.memory_gigabytes_per_second * 1e9)
    if device.runs_ahead:
        return seconds
    starts = len(trained) * KERNELS_OF_A_RULE * device.microseconds_per_kernel * 1e-6
    return seconds + starts + _dispatches(pace, device)


def _dispatches(pace: Pace, device: Device) -> float:
    """What DTensors add to an update; a card has enough to do meanwhile."""
    if device.runs_ahead:
        return 0.0
    if SPREAD_UPDATE in device.chores:
        return pace.dispatched_updates * device.chores[SPREAD_UPDATE] * 1e-6
    return pace.dispatched_updates * KERNELS_OF_A_RULE * device.microseconds_per_dispatch * 1e-6


def _to_host(pace: Pace, device: Device) -> float:
    if not pace.to_host or not device.host_gigabytes_per_second:
        return 0.0
    return pace.to_host / (device.host_gigabytes_per_second * 1e9)

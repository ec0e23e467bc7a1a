"""How long an update of a plan takes on a cluster, and what it needs: in numbers before it runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, isnan, prod

import numpy as np

from fleetx.auto.cluster import Cluster, Device, Link
from fleetx.plan.accounts import Accounts, Needs
from fleetx.plan.backward_memory import (
    as_it_begins,
    as_it_begins_beside_outputs,
    in_its_course,
)
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange
from fleetx.plan.mesh import AXES
from fleetx.plan.operators import KINDS
from fleetx.plan.pace import Pace
from fleetx.plan.share import Share, kept_bytes
from fleetx.plan.trace import Trace
from fleetx.plan.work import Column, Work

BUCKET = 32e6
"""Bytes that collectives of many tensors send at once."""
KERNELS_OF_A_RULE = 8
"""That an optimizer starts for each parameter, where it goes one by one; about those of Adam."""
BATCH = "batch"
"""The chore of the engine, for each batch."""
SPREAD_UPDATE = "update of a DTensor"
"""The chore of an optimizer, for each parameter that is one."""


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
    timed = [_computing(share, accounts, cluster.device, correction) for share in shares]
    slowest = max(range(len(ranks)), key=lambda at: sum(timed[at]))
    forward, backward = timed[slowest]
    pace, device = _pace(accounts, shares[slowest]), cluster.device
    exchange, exposed = _exchanges(needs, accounts, cluster, backward)
    held = max(map(_held, needs, shares), key=lambda parts: sum(parts.values()))
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
        chores=_counted(pace, shares[slowest]),
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


def _pace(accounts: Accounts, share: Share) -> Pace:
    pace = Pace()
    for strategy in accounts.plan.strategies:
        pace = strategy.pace(pace, share)
    return pace


def _computing(
    share: Share, accounts: Accounts, device: Device, correction: float
) -> tuple[float, float]:
    """Seconds of all forwards and of all backwards of an update, the host's included."""
    work = share.work
    assert work is not None
    pace = _pace(accounts, share)
    once, back = _kernels(work, device)
    runs = share.run.micro_batches * share.run.batches
    chores = _chores(pace, share, device) / runs / 2
    starts, ends = _host(work, device)
    longer, longer_back = (1.0, 1.0) if share.whole else _rehearsed(accounts, device)
    dispatched = work.dispatched * device.microseconds_per_dispatch * 1e-6
    begun = (starts * longer + dispatched) * pace.starts
    forward = _with_host(once * longer, [*begun, chores], device)
    again = work.forwards > 1
    replays = _with_host(once[again] * longer, [*begun[again], _checkpoints(pace, device)], device)
    ended = (ends * longer_back + dispatched * work.backwards) * pace.starts
    backward = _with_host(back * longer_back, [*ended, chores], device) + replays
    cast = pace.casts * pace.moved + pace.cast_by_kernels
    casts = cast / (device.memory_gigabytes_per_second * 1e9)
    forward, backward = forward + casts / 3, backward + casts * 2 / 3
    besides = _moved_besides(share, pace, device)
    return forward * runs * correction, (backward * runs + besides) * correction


def _kernels(work: Work, device: Device) -> tuple[Column, Column]:
    """Seconds of each operator on the device, once forward and once backward."""
    counted = _seconds(work, device)
    once = np.where(np.isnan(work.forward_seconds), counted, work.forward_seconds)
    back = np.where(
        np.isnan(work.backward_seconds), counted * work.backwards, work.backward_seconds
    )
    return once, back + work.joined / (device.memory_gigabytes_per_second * 1e9)


def _host(work: Work, device: Device) -> tuple[Column, Column]:
    """Seconds of the host to start each operator, once forward and once backward."""
    python = work.calls * device.microseconds_per_module
    gradient = device.microseconds_per_gradient or device.microseconds_per_kernel
    starts = work.starts * device.microseconds_per_kernel + python
    return starts * 1e-6, work.starts * gradient * 1e-6 * work.backwards


def _checkpoints(pace: Pace, device: Device) -> float:
    """Seconds of the host for what is let go and for modules that are replayed."""
    tensors = pace.replays * device.microseconds_per_replay
    return (tensors + pace.segments * device.microseconds_per_segment) * 1e-6 * pace.starts


def _rehearsed(accounts: Accounts, device: Device) -> tuple[float, float]:
    """What forward and backward take of what their operators do, where the model itself has run."""
    clock, share = accounts.subject.clock, accounts.undivided
    if clock is None or device.runs_ahead or share.work is None:
        return 1.0, 1.0
    kernels, host = _kernels(share.work, device), _host(share.work, device)
    took = clock.called(accounts.undivided_call)
    times = [
        measured / float(operators.sum() + starts.sum())
        for measured, operators, starts in zip(took, kernels, host, strict=True)
    ]
    forward, backward = (1.0 if isnan(longer) else longer for longer in times)
    return forward, backward


def _counted(pace: Pace, share: Share) -> dict[str, float]:
    return {**pace.chores, BATCH: share.run.batches, SPREAD_UPDATE: pace.dispatched_updates}


def _chores(pace: Pace, share: Share, device: Device) -> float:
    """Seconds of the host for what it does besides, in each update."""
    counts = {**_counted(pace, share), SPREAD_UPDATE: 0}  # which is a part of the update
    found = (device.chores.get(name, 0.0) * count for name, count in counts.items())
    return sum(found) * 1e-6 * pace.starts


def _moved_besides(share: Share, pace: Pace, device: Device) -> float:
    """Copies, and gradients that are added to those of the micro-batches before, in each update."""
    again = share.run.micro_batches * share.run.batches - 1
    pieces = share.parameters if pace.whole_gradients else share.gradients
    waiting = [piece for piece in pieces.values() if piece.trained]
    added = 3 * sum(piece.size for piece in waiting)
    moved = (pace.copied + again * added) / (device.memory_gigabytes_per_second * 1e9)
    starts = again * len(waiting) * device.microseconds_per_kernel * 1e-6 * pace.starts
    return max(moved, starts) if device.runs_ahead else moved + starts


def _seconds(work: Work, device: Device) -> Column:
    """Of each operator, once forward: what it computes or what it moves, whichever is longer."""
    rates = np.ones(len(work.kind))
    for kind in np.unique(work.kind).tolist():
        for bits in np.unique(work.bits[work.kind == kind]).tolist():
            rates[(work.kind == kind) & (work.bits == bits)] = device.rate(KINDS[kind], bits)
    moved = work.moved / (device.memory_gigabytes_per_second * 1e9)
    return np.maximum(work.operations / rates, moved)


def _with_host(kernels: Column, starts: Column | Sequence[float], device: Device) -> float:
    """A host that runs ahead starts kernels while others run; a CPU does one after the other."""
    computing, host = float(kernels.sum()), float(np.sum(starts))
    return max(computing, host) if device.runs_ahead else computing + host


def _waiting(pace: Pace, computing: float, device: Device) -> float:
    """Where workers share cores, those that wait leave theirs to the others."""
    return max(0.0, (1 + pace.idle) * computing / device.crowding - computing)


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


def _held(needs: Needs, share: Share) -> dict[str, float]:
    """What there is when most is there: as the backward begins, or in the middle of it.

    Or as the first one of a new job begins, when the optimizer keeps nothing yet.
    """
    moments = [_as_it_begins(needs, share), _in_its_middle(needs, share)]
    if (first := share.at_first) is not None:
        new = replace(needs, state=0, activations=kept_bytes(first.waiting))
        moments.append(_as_it_begins(new, first))
    parts = max(moments, key=lambda held: sum(held.values()))
    return {what: float(size) for what, size in parts.items() if size}


def _as_it_begins(needs: Needs, share: Share) -> dict[str, int]:
    """Outputs and the criterion's gradients are there, and where they come anew no others."""
    assert share.trace is not None
    last = share.trace.part_of_each.max(initial=0)
    if not share.trace.has_criterion or last not in share.parts:
        return {}
    come_anew = share.run.batches * share.run.micro_batches == 1
    come_anew &= share.mesh["dp"] * share.mesh["sharding"] == 1  # else buckets keep them
    passing = as_it_begins if share.mesh["pp"] == 1 else as_it_begins_beside_outputs
    parts = _always(needs) | {"outputs, and gradients of the criterion": _once(share, passing)}
    return parts | {"gradients": 0 if come_anew else needs.gradients}


def _in_its_middle(needs: Needs, share: Share) -> dict[str, int]:
    """With gradients of values, which grow while what was saved is let go.

    Blocks that are replayed have saved nothing to let go: the largest value of all counts there.
    """
    assert share.trace is not None
    parts = _always(needs) | {"gradients": needs.gradients}
    most = share.trace.largest if share.replayed else _once(share, in_its_course)
    parts["gradients of activations"] = most
    for one in needs.extra:
        if one.passing:
            parts[one.what] = parts.get(one.what, 0) + one.kept_bytes
    return parts


def _once(share: Share, found: Callable[[Trace], int]) -> int:
    """What is the same for all plans with such batches."""
    assert share.trace is not None
    key = found.__name__, share.trace.form, share.run.micro_batches, share.subject.samples()
    return share.subject.once(key, partial(found, share.trace))


def _always(needs: Needs) -> dict[str, int]:
    parts = {
        "parameters": needs.parameters,
        "gradients": 0,
        "optimizer state": needs.state or 0,
        "buffers": needs.buffers,
        "activations": needs.activations or 0,
    }
    for one in needs.extra:
        if not one.passing:
            parts[one.what] = parts.get(one.what, 0) + one.kept_bytes
    return parts


def _check_known(share: Share) -> None:
    if share.work is None:
        why = next(iter(share.unknown), "no batch is known")
        raise PlanError(f"how long a step takes is not known: {why}.")


def _exchanges(
    needs: Sequence[Needs], accounts: Accounts, cluster: Cluster, backward: float
) -> tuple[float, float]:
    """Seconds of all exchanges of the busiest rank, and what of them nothing hides."""
    worst = (0.0, 0.0)
    for one in needs:
        beside, alone, busy, least = 0.0, 0.0, 0.0, 0.0
        for exchange in one.exchanges:
            link = _link(exchange, accounts, cluster)
            seconds = _exchange_seconds(exchange, accounts, link)
            if exchange.beside:
                busy += seconds * link.busy
                beside += seconds * (1 - link.busy)
                least += seconds * (1 - link.busy) / _in_turn(exchange)
            else:
                alone += seconds
        exposed = alone + busy + max(least, beside - backward)
        worst = max(worst, (exposed, beside + busy + alone))
    exposed, every = worst
    return every, exposed


def _pieces(exchange: Exchange) -> int:
    return exchange.pieces or max(1, ceil(exchange.moved_bytes / BUCKET))


def _in_turn(exchange: Exchange) -> float:
    """How many pieces travel one after the other while a rank computes: nothing hides one of them.

    The first that a forward needs, or the last that a backward makes; stages of a pipeline go on
    with other micro-batches meanwhile.
    """
    return max(1.0, exchange.times or 1) if exchange.collective == "send" else _pieces(exchange)


def _link(exchange: Exchange, accounts: Accounts, cluster: Cluster) -> Link:
    mesh = accounts.plan.mesh
    ranks, stride = 1, 1
    for at, axis in enumerate(AXES):
        if axis in exchange.axis.split(" x "):
            ranks *= mesh[axis]
            stride = prod(mesh[inner] for inner in AXES[at + 1 :])
    return cluster.link(ranks, stride)


def _exchange_seconds(exchange: Exchange, accounts: Accounts, link: Link) -> float:
    if exchange.times is None:
        return 0.0
    mesh = accounts.plan.mesh
    ranks = prod(mesh[axis] for axis in exchange.axis.split(" x ") if axis in mesh)
    hops = {"all-reduce": 2 * (ranks - 1), "send": 1}.get(exchange.collective, ranks - 1)
    messages = hops * _pieces(exchange)
    return exchange.times * link.seconds(exchange.sent_bytes, messages, exchange.collective)

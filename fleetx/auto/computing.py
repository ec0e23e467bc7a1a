"""What forwards and backwards of an update take a rank, with all that its host does for them."""

from collections.abc import Sequence
from math import isnan

import numpy as np

from fleetx.auto.cluster import Device
from fleetx.plan.accounts import Accounts
from fleetx.plan.operators import KINDS
from fleetx.plan.pace import Pace
from fleetx.plan.share import Share
from fleetx.plan.work import Column, Work

BATCH = "batch"
"""The chore of the engine, for each batch."""
SPREAD_UPDATE = "update of a DTensor"
"""The chore of an optimizer, for each parameter that is one."""


def pace_of(accounts: Accounts, share: Share) -> Pace:
    """How the strategies of the plan change the course of a step."""
    pace = Pace()
    for strategy in accounts.plan.strategies:
        pace = strategy.pace(pace, share)
    return pace


def computing(
    share: Share, accounts: Accounts, device: Device, correction: float
) -> tuple[float, float]:
    """Seconds of all forwards and of all backwards of an update, the host's included."""
    work = share.work
    assert work is not None
    pace = pace_of(accounts, share)
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
    clock = accounts.subject.clock
    if clock is None or device.runs_ahead or (share := accounts.undivided).work is None:
        return 1.0, 1.0
    kernels, host = _kernels(share.work, device), _host(share.work, device)
    took = clock.called(accounts.undivided_call)
    times = [
        measured / float(operators.sum() + starts.sum())
        for measured, operators, starts in zip(took, kernels, host, strict=True)
    ]
    forward, backward = (1.0 if isnan(longer) else longer for longer in times)
    return forward, backward


def chores_of(pace: Pace, share: Share) -> dict[str, float]:
    """What the host does besides in each update -> how often."""
    return {**pace.chores, BATCH: share.run.batches, SPREAD_UPDATE: pace.dispatched_updates}


def _chores(pace: Pace, share: Share, device: Device) -> float:
    """Seconds of the host for what it does besides, in each update."""
    counts = {**chores_of(pace, share), SPREAD_UPDATE: 0}  # which is a part of the update
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

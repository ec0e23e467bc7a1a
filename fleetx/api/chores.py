"""What chores of the host take on the machines at hand, from plans that have nothing to compute.

FSDP begins and ends a unit, DTensors are dealt out, a schedule goes to its next micro-batch: such
work has no shapes by which it could be reckoned, and takes most of the time of a small step. A tiny
model is run under a few plans; what the processor does for them beyond what is expected is divided
among the chores that they have.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from fleetx import roles
from fleetx.api.session import Given
from fleetx.api.trials import Trial
from fleetx.auto.choose import subject_of
from fleetx.auto.clock import OperatorClock
from fleetx.auto.cluster import Cluster
from fleetx.auto.computing import SPREAD_UPDATE
from fleetx.auto.estimate import estimate
from fleetx.auto.probe import turns_of_a_core
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.plan.accounts import Accounts
from fleetx.plan.compose import compose
from fleetx.plan.error import PlanError
from fleetx.plan.strategy import Plan
from fleetx.roles.session import world

SAMPLES, WIDTH = 8, 16
FEW, MANY = 1, 4
"""Blocks of the tiny model."""
UPDATES, MERGED = 5, 3
Flags = Mapping[str, Any]


class _Block(nn.Module):
    """Two layers that tensor parallel can cut, a norm, and the way past them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, width), nn.Linear(width, width)

    @override
    def forward(self, x: Tensor) -> Tensor:
        inside: Tensor = self.fc2(torch.relu(self.fc1(self.norm(x))))
        return x + inside


@dataclass(frozen=True)
class _Case:
    """One plan of the tiny model."""

    blocks: int
    flags: Flags
    merged: int = 1

    def plan(self, workers: int) -> Plan:
        """The plan on so many workers.

        Raises:
            PlanError: they cannot have it.
        """
        strategy = DistributedStrategy()
        merge = {"gradient_merge": True, "gradient_merge_configs": {"k_steps": self.merged}}
        for name, value in (dict(self.flags) | (merge if self.merged > 1 else {})).items():
            setattr(strategy, name, value)
        return compose(strategy.request(), workers)


def with_chores(cluster: Cluster) -> Cluster:
    """The cluster with what chores take there; all workers call it."""
    if cluster.workers == 1:
        return cluster
    found = list(_rows(replace(cluster, device=replace(cluster.device, chores={SPREAD_UPDATE: 0}))))
    device = replace(cluster.device, chores=shared_out(found))
    return replace(cluster, device=device)


def shared_out(rows: Sequence[tuple[Mapping[str, float], float, float]]) -> dict[str, float]:
    """Microseconds of each chore, none below 0, by which all rows come closest to what they took.

    Args:
        rows: chores with their counts; seconds that are missing; seconds of all that was done.
    """
    names = sorted({name for counts, _, _ in rows for name, count in counts.items() if count})
    counts = np.array([[one.get(name, 0.0) for name in names] for one, _, _ in rows])
    lack, took = (np.array([row[at] for row in rows]) for at in (1, 2))
    weights = 1 / np.maximum(took, 1e-9)
    found = _not_negative(counts * weights[:, None], lack * weights)
    return {name: 1e6 * float(value) for name, value in zip(names, found, strict=True)}


def _not_negative(columns: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares, with the columns left out whose part would be below 0."""
    kept = list(range(columns.shape[1]))
    found = np.zeros(columns.shape[1])
    while kept:
        solved, *_ = np.linalg.lstsq(columns[:, kept], wanted, rcond=None)
        if solved.min() >= 0:
            found[kept] = solved
            break
        kept.remove(kept[int(solved.argmin())])
    return found


def _rows(cluster: Cluster) -> Iterator[tuple[Mapping[str, float], float, float]]:
    device = roles.device()
    turns = turns_of_a_core(device)
    clock = OperatorClock(device, cluster.device, calls_models=True)
    for case in _cases(cluster.workers):
        with torch.random.fork_rng([]):
            model = nn.Sequential(*(_Block(WIDTH) for _ in range(case.blocks)))
        inputs = torch.zeros(SAMPLES, WIDTH)
        shown = Given(model, sample=inputs, criterion=nn.functional.mse_loss, targets=inputs)
        subject = subject_of(
            model,
            sample=inputs,
            criterion=shown.criterion,
            targets=inputs,
            device=device,
            clock=clock,
        )
        rule = subject.rule()
        assert rule is not None
        try:
            plan = case.plan(cluster.workers)
            expected = estimate(Accounts(plan, subject), cluster)
        except PlanError:  # such as layers that are cut without NCCL
            continue
        busy = Trial(shown, rule).took(plan, SAMPLES, case.merged, UPDATES, _processor(device))
        if (busy := turns * slowest(busy)) != float("inf"):
            computing = expected.forward + expected.backward + expected.update
            yield expected.chores, busy - computing, busy


def _processor(device: torch.device) -> Callable[[], float]:
    """Counts what the host does, and not what it waits for; a card has threads of its own there."""
    return time.thread_time if device.type == "cpu" else time.process_time


def _cases(workers: int) -> Iterator[_Case]:
    """So that each chore is often there, and seldom, and not."""
    yield from _with_depths({})
    if (ranks := _ranks(workers)) == 1:
        return
    yield from _with_depths(_axis("sharding", ranks, {"stage": 2}))
    for stage in (2, 3):  # each block by itself
        options = {"stage": stage, "segment_anchors": [str(n) for n in range(MANY)]}
        yield _Case(MANY, _axis("sharding", ranks, options))
    yield from _with_depths(_axis("tensor_parallel", ranks, {"plan": "transformer"}))
    one = {"column": ["0.fc1"], "row": ["0.fc2"]}
    yield _Case(MANY, _axis("tensor_parallel", ranks, one))  # the rest is not cut
    least = 2 if ranks == 2 else 4  # a schedule keeps all stages busy
    for count, merged in ((least, 1), (SAMPLES, 1), (least, MERGED)):
        yield _Case(MANY, _axis("pipeline", ranks, {"accumulate_steps": count}), merged)


def _with_depths(flags: Flags) -> Iterator[_Case]:
    yield _Case(FEW, flags)
    yield _Case(MANY, flags)
    yield _Case(MANY, flags, MERGED)


def _axis(name: str, ranks: int, options: Mapping[str, Any]) -> Flags:
    degree = {"sharding": "sharding_degree", "tensor_parallel": "mp_degree"}.get(name, "pp_degree")
    return {name: True, f"{name}_configs": dict(options), "hybrid_configs": {degree: ranks}}


def _ranks(workers: int) -> int:
    """Ranks of an axis, no more than there are blocks; 1 where workers cannot be dealt out so."""
    return max(ranks for ranks in range(1, MANY + 1) if workers % ranks == 0)


def slowest(seconds_here: float) -> float:
    """What the slowest worker took; all of them ask."""
    barrier = world("strategy.auto").barrier
    if barrier is None or barrier.size == 1:
        return seconds_here
    return max(map(float, barrier.tell("strategy.auto", repr(seconds_here))))

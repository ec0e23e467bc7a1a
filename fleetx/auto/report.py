"""The best plans in words."""

from collections.abc import Iterator
from typing import Any

from fleetx.auto.proposals import Proposal, Proposals
from fleetx.auto.units import seconds, size
from fleetx.auto.verdict import shortage
from fleetx.config.distributed_strategy import DistributedStrategy
from fleetx.plan.strategy import REGISTRY

COLUMNS = ("", "update", "samples/s", "memory", "sent", "bubble", "mostly", "plan")
AXES = {"pp": "pipeline", "dp": "data", "sharding": "sharding", "tp": "tensor"}
"""Axis -> what users call it."""
SAME = 0.01
"""What part of a time nobody notices."""
WORTH_SAYING = (
    *("k_steps", "stage", "dtype", "use_pure_fp16", "use_pure_bf16", "accumulate_steps"),
    *("schedule_mode", "enable_offload", "optimize_offload", "mode"),
)
"""Options of a strategy that a line has room for."""


def report(plans: Proposals) -> str:
    """All of it."""
    return "\n".join([*_head(plans), *table(plans), *_foot(plans)])


def _head(plans: Proposals) -> Iterator[str]:
    cluster = plans.cluster
    where = f" on {cluster.name}" if cluster.name else ""
    workers = f"{cluster.workers} worker{'s' * (cluster.workers != 1)}"
    yield (
        f"The best {len(plans)} of {plans.looked_at} plans for {workers}{where}, "
        f"{plans.samples} samples an update:"
    )


def table(plans: Proposals) -> Iterator[str]:
    """A line for each plan."""
    rows = [COLUMNS, *(row(at, one) for at, one in enumerate(plans, 1))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        numbers = [cell.rjust(width) for cell, width in zip(cells[:-2], widths, strict=False)]
        yield f"  {'  '.join(numbers)}  {cells[-2].ljust(widths[-2])}  {cells[-1]}".rstrip()


def row(at: int, proposal: Proposal) -> tuple[str, ...]:
    """The cells of one plan."""
    found = proposal.expected
    return (
        str(at),
        seconds(found.seconds),
        f"{found.throughput:.4g}",
        size(found.memory) + ("" if found.fits else " !"),
        size(found.sent),
        f"{found.bubble:.0%}",
        found.binding,
        in_words(proposal),
    )


def in_words(proposal: Proposal) -> str:
    """What is switched on, and over how many ranks."""
    mesh = proposal.planned.plan.mesh
    axes = [f"{AXES[axis]} {ranks}" for axis, ranks in mesh.items() if ranks > 1]
    flags = [_flag(name, proposal.strategy) for name in switched_on(proposal.strategy)]
    batch = f"batches of {proposal.batch}"
    return "; ".join(filter(None, [" x ".join(axes), ", ".join(flags) or "plain", batch]))


def switched_on(strategy: DistributedStrategy) -> list[str]:
    """The names of the strategies that it switches on."""
    return [name for name, cls in REGISTRY.items() if not cls.internal and getattr(strategy, name)]


def _flag(name: str, strategy: DistributedStrategy) -> str:
    chosen: dict[str, Any] = strategy.explicit().get(f"{name}_configs", {})
    said = [f"{key} {chosen[key]}" for key in WORTH_SAYING if key in chosen]
    parts = len(chosen["checkpoints"]) if "checkpoints" in chosen else 0
    said += [f"{parts} part{'s' * (parts != 1)}"] if parts else []
    return f"{name} ({', '.join(said)})" if said else name


def _foot(plans: Proposals) -> Iterator[str]:
    best = plans.best
    if missing := shortage([best.planned]):
        yield missing
        return
    yield f"Of {size(best.expected.available)} a rank; exchanges are those of the busiest rank."
    yield from _runner_up(plans)
    yield from plans.changes


def _runner_up(plans: Proposals) -> Iterator[str]:
    if len(plans) == 1:
        return
    more = plans[1].expected.seconds / plans.best.expected.seconds - 1
    if abs(more) < SAME:
        yield "The first two are expected to take the same time; the first one is simpler."
        return
    compared = "longer" if more > 0 else "less, and is less simple"
    yield f"The second one is expected to take {abs(more):.0%} {compared}."

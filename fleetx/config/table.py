"""The table that ``print(strategy)`` shows: what is on, with which options, and what differs."""

from collections.abc import Iterator, Mapping
from typing import Any

from fleetx.config.job_options import BLOCKS, JobOptions
from fleetx.config.switchboard import Switchboard, blocks, switches
from fleetx.plan.option import annotations

NAME_WIDTH = 36


def render(strategy: Switchboard) -> str:
    """What is on comes first; what nobody touched is one line."""
    on = [name for name in switches() if getattr(strategy, name)]
    rows = [*_switched_on(strategy, on), *_options(strategy), *_blocks(strategy)]
    off = ", ".join(sorted(set(switches()) - set(on)))
    width = max(60, *(len(row) for row in rows)) if rows else 60
    body = rows or ["nothing is switched on: plain data parallel training"]
    resting = [f"{n}_configs" for n in switches() if n not in on and _chosen(strategy, n)]
    foot = [f"resting until their switch is on: {', '.join(resting)}"] if resting else []
    lines = ("DistributedStrategy", "=" * width, *body, "-" * width, f"off: {off}", *foot)
    return "\n".join(lines)


def _chosen(strategy: Switchboard, name: str) -> bool:
    return bool(strategy.explicit().get(f"{name}_configs"))


def _switched_on(strategy: Switchboard, on: list[str]) -> Iterator[str]:
    for name in on:
        yield f"{name:<{NAME_WIDTH}}on"
        if f"{name}_configs" in blocks():
            normal = blocks()[f"{name}_configs"]().values()
            yield from _rows(getattr(strategy, f"{name}_configs"), normal, everything=True)


def _options(strategy: Switchboard) -> Iterator[str]:
    values = {name: getattr(strategy, name) for name in annotations(JobOptions)}
    yield from _rows(values, JobOptions().values(), indent="")


def _blocks(strategy: Switchboard) -> Iterator[str]:
    for name, config in BLOCKS.items():
        rows = [*_rows(getattr(strategy, name), config().values())]
        if rows:
            yield name
            yield from rows


def _rows(
    values: Mapping[str, Any],
    normal: Mapping[str, Any],
    *,
    everything: bool = False,
    indent: str = "  ",
) -> Iterator[str]:
    for name, value in values.items():
        note = "" if value == normal[name] else f"   (default {_shown(normal[name])})"
        if everything or note:
            yield f"{indent + name:<{NAME_WIDTH}}{_shown(value)}{note}"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value) or "-"
    return str(value)

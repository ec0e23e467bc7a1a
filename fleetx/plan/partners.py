"""Who acts between workers, and what becomes of it where there is nobody to act with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from fleetx.plan.error import PlanError
from fleetx.plan.mesh import in_words
from fleetx.plan.strategy import Plan, Strategy

ALONE = "one worker has nobody to exchange with"


@dataclass(frozen=True)
class _Lonely:
    """A flag that is on and has nobody to act with."""

    name: str
    value: Any
    normal: Any
    """What switches it off."""
    axes: tuple[str, ...]
    alone: str = ""
    """What is left of it in a job of one worker."""


def resting(plan: Plan, changed: Mapping[str, Any], workers: int) -> dict[str, str]:
    """Flags that are on and have nothing to do here -> why; for ``Plan.resting``.

    A flag without a partner rests in a job of one worker, so that scripts run anywhere. In a job
    of several it is refused, because somebody expects it to act between them.

    Args:
        plan: strategies and mesh.
        changed: the options of the whole job that differ from their default -> the default.
        workers: those of the job; each may be a world of its own.
    """
    found = {flag: why for s in plan.strategies for flag, why in s.rests().items()}
    for flag in _without_partner(plan, changed):
        if workers > 1:
            raise PlanError(_refusal(flag, plan.mesh, workers))
        found[f"strategy.{flag.name}"] = f"{ALONE}; {flag.alone}" if flag.alone else ALONE
    return found


def _without_partner(plan: Plan, changed: Mapping[str, Any]) -> Iterator[_Lonely]:
    idle = [strategy for strategy in plan.strategies if not _acts(strategy, plan.mesh)]
    for strategy in idle:
        if not strategy.internal:
            axes = strategy.contract.between
            yield _Lonely(strategy.name, True, False, axes, strategy.alone())
    for name, normal in changed.items():
        # An option of the whole job acts where the strategies act that obey it.
        readers = [s for s in plan.strategies if name in s.contract.reads]
        if readers and all(strategy in idle for strategy in readers):
            yield _Lonely(name, plan.options[name], normal, readers[0].contract.between)


def _acts(strategy: Strategy, mesh: Mapping[str, int]) -> bool:
    axes = strategy.contract.between
    return not axes or prod(mesh[axis] for axis in axes) > 1


def _refusal(flag: _Lonely, mesh: Mapping[str, int], workers: int) -> str:
    where = " and ".join(flag.axes)
    if prod(mesh.values()) == workers:
        found = f"there is 1 along {where} ({in_words(mesh)})"
    else:
        found = f"each of the {workers} workers of this job trains by itself"
    return (
        f"strategy.{flag.name} = {flag.value!r} has no partner: it acts between ranks along "
        f"{where}, and {found}, so it would do nothing. Set the degree of {where} to 2 or more, "
        f"lower the others or start more workers; or set strategy.{flag.name} = {flag.normal!r}."
    )

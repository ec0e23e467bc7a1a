"""From the strategies a user asked for to an ordered, checked plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fleetx.plan.error import PlanError
from fleetx.plan.mesh import Degree, shape
from fleetx.plan.partners import resting
from fleetx.plan.strategy import REGISTRY, Plan, Strategy

DEFAULTS = {"drive": "eager", "carrier": "data_parallel"}
"""Capability -> the strategy that provides it when the user asks for no other."""

CAPABILITIES = {
    "cadence": "the rhythm of updates",
    "carrier": "the way in which workers agree",
    "drive": "the way in which a batch is run",
    "rule": "the rule by which parameters move",
    "buckets": "gradients in buckets that it may encode",
    "gradient_exchange": "an exchange of gradients between workers",
}
"""Capability -> the words for it in a refusal."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asked for, as plain data."""

    strategies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Name -> options, for each strategy that is switched on."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Every option of the whole job, with its value."""

    changed: Mapping[str, Any] = field(default_factory=dict)
    """Those options that differ from their default: name -> the default."""

    degrees: Mapping[str, Degree] = field(default_factory=dict)
    """Axis -> ranks, for the axes whose degree was set."""

    advice: Mapping[str, str] = field(default_factory=dict)
    """Option -> what to say of it, and to do instead, when nothing in the plan obeys it."""

    def without(self, *names: str) -> "Request":
        """The same request with some strategies left out, and the axes along which they spread."""
        kept = {name: given for name, given in self.strategies.items() if name not in names}
        freed = {REGISTRY[name].contract.axis for name in self.strategies if name not in kept}
        freed = {"dp", *freed} if freed - {None} else set()
        degrees = {axis: degree for axis, degree in self.degrees.items() if axis not in freed}
        return replace(self, strategies=kept, degrees=degrees)


def compose(request: Request, world: int, *, workers: int | None = None) -> Plan:
    """Check every contract and return the plan; raise ``PlanError`` rather than drop anything.

    Args:
        request: what was asked for.
        world: the workers that share the mesh.
        workers: those of the job, where each is a world of its own.
    """
    chosen = {name: _make(name, options) for name, options in request.strategies.items()}
    provider = _providers(chosen)
    for capability, name in DEFAULTS.items():
        if capability not in provider:
            chosen[name] = _make(name, {})
            provider |= dict.fromkeys(chosen[name].contract.provides, name)
    for strategy in chosen.values():
        _check(strategy, chosen, provider)
    _check_options(request, chosen)
    ordered = sorted(chosen.values(), key=lambda s: (s.contract.phase, s.name))
    axes = {s.contract.axis: s.name for s in ordered if s.contract.axis}
    mesh = shape({"dp": "data parallel"} | axes, request.degrees, world)
    plan = Plan(strategies=tuple(ordered), mesh=mesh, options=dict(request.options))
    plan = replace(plan, resting=resting(plan, request.changed, workers or world))
    for strategy in ordered:
        strategy.examine(plan)
    return plan


def extend(plan: Plan, name: str, options: Mapping[str, Any]) -> Plan:
    """The plan with one more strategy, for what becomes known after the model was laid out."""
    chosen = {strategy.name: strategy for strategy in plan.strategies}
    if name in chosen:
        raise PlanError(f"{name} was asked for twice; ask for it once.")
    late = _make(name, options)
    assert "model" not in late.contract.touches, f"{name} would come too late for the model"
    chosen[name] = late
    provider = _providers(chosen)
    for strategy in chosen.values():
        _check(strategy, chosen, provider)
    ordered = sorted(chosen.values(), key=lambda s: (s.contract.phase, s.name))
    extended = replace(plan, strategies=tuple(ordered))
    for strategy in ordered:
        strategy.examine(extended)
    return extended


def _make(name: str, options: Mapping[str, Any]) -> Strategy:
    if name not in REGISTRY:
        raise PlanError(
            f"strategy.{name} = True cannot be in force: this version of fleetx does not have "
            f"{name} yet. Set strategy.{name} = False."
        )
    return REGISTRY[name](**options)


def _providers(chosen: Mapping[str, Strategy]) -> dict[str, str]:
    provider: dict[str, str] = {}
    for name, strategy in chosen.items():
        for capability in sorted(strategy.contract.provides):
            if capability in provider:
                what = CAPABILITIES.get(capability, f"the {capability}")
                raise PlanError(
                    f"{provider[capability]} and {name} both provide {what}, and a job has "
                    "exactly one. Turn one of them off."
                )
            provider[capability] = name
    return provider


def _check(strategy: Strategy, chosen: Mapping[str, Strategy], provider: Mapping[str, str]) -> None:
    for other, reason in strategy.contract.conflicts.items():
        if other in chosen:
            raise PlanError(
                f"{strategy.name} cannot train together with {other}: {reason} "
                "Turn one of them off."
            )
    for capability in sorted(strategy.contract.requires - provider.keys()):
        others = sorted(n for n, s in chosen.items() if n != strategy.name and not s.internal)
        raise PlanError(
            f"{strategy.name} needs {CAPABILITIES.get(capability, capability)}, and there is none "
            f"with {', '.join(others) or 'the other strategies'}. Turn one of them off."
        )


def _check_options(request: Request, chosen: Mapping[str, Strategy]) -> None:
    """An option that differs from its default is read by somebody, or the run stops."""
    read = {name for strategy in chosen.values() for name in strategy.contract.reads}
    for name, normal in request.changed.items():
        if name not in read:
            plan = ", ".join(sorted(chosen))
            reason = request.advice.get(name, f"nothing in this plan ({plan}) obeys it.")
            set_so, back = _differences(name, request.options[name], normal)
            raise PlanError(f"{set_so} cannot be in force: {reason} {back}")


def _differences(name: str, value: Any, normal: Any) -> tuple[str, str]:
    """What was set, in the words of a script, and how to take it back; of a block, key by key."""
    if not isinstance(value, Mapping):
        return f"strategy.{name} = {value!r}", f"Leave it at {normal!r}."
    changed = [key for key in value if value[key] != normal[key]]
    set_so = " and ".join(f"strategy.{name}[{key!r}] = {value[key]!r}" for key in changed)
    if len(changed) == 1:
        return set_so, f"Leave it at {normal[changed[0]]!r}."
    return set_so, f"Leave them at {', '.join(repr(normal[key]) for key in changed)}."

"""What workers must have in common, as facts in the user's words, and how differences are told."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fleetx.plan.strategy import Plan

Facts = dict[str, str]
"""What it is, in the user's words -> its value."""
UNTRAINED = "which the optimizer does not have"
SHOWN = 4
"""Differences that a complaint names."""
ADVICE = (
    "Each would train in its own way and drift apart; set the same strategy, the same optimizer "
    "and the same numbers on every worker."
)


def of_plan(plan: Plan) -> Facts:
    """The strategy, its options and the mesh."""
    facts = {f"strategy.{name}": repr(value) for name, value in plan.options.items()}
    facts |= {f"the degree of {axis}": str(ranks) for axis, ranks in plan.mesh.items()}
    facts |= {f"strategy.{s.name}": "True" for s in plan.strategies if not s.internal}
    return facts | of_configs(plan)


def of_configs(plan: Plan) -> Facts:
    """The options of the strategies that take part."""
    return {
        f"{strategy.name}_configs[{name!r}]": repr(value)
        for strategy in plan.strategies
        for name, value in strategy.config.values().items()
    }


def of_groups(groups: Sequence[Mapping[str, Any]]) -> Facts:
    """The numbers of an optimizer's groups."""
    return {
        f"{name} of group {at}": value
        for at, group in enumerate(groups)
        for name, value in _numbers(group).items()
    }


def of_names(groups: Sequence[Sequence[str]]) -> Facts:
    """Which parameters are in which group."""
    return {f"the parameters of group {at}": _digest(names) for at, names in enumerate(groups)}


def of_values(parameters: Mapping[str, Tensor]) -> Facts:
    """What is in parameters that nobody moves, and nobody makes equal."""
    return {f"what is in {name!r}, {UNTRAINED},": _print(held) for name, held in parameters.items()}


def _print(held: Tensor) -> str:
    flat = held.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(flat.numpy().data, digest_size=4).hexdigest()


def short(value: Any) -> Any:
    """Machines of several kinds may differ in the last digit of a cosine."""
    return f"{value:.6g}" if isinstance(value, float) else value


def _numbers(group: Mapping[str, Any]) -> Facts:
    """The options of a group that are plain values; the others speak of what this worker holds."""
    found: Facts = {}
    for name, value in group.items():
        if isinstance(value, Tensor) and value.numel() == 1:
            found[name] = short(float(value))
        elif isinstance(value, float):
            found[name] = short(value)
        elif name == "betas" or isinstance(value, bool | int | str | None):
            found[name] = repr(value)
    return found


def _digest(names: Sequence[str]) -> str:
    text = "\n".join(names)
    return f"{len(names)} ({hashlib.sha256(text.encode()).hexdigest()[:8]})"


def differences(said: Mapping[str, Facts]) -> str:
    """Who differs in what, of workers by their numbers; empty where all agree."""
    names = dict.fromkeys(name for own in said.values() for name in own)
    apart = [name for name in names if len({own.get(name) for own in said.values()}) > 1]
    # That a strategy is on for some says enough: its options, which the others lack, would hide it.
    apart = [name for name in apart if not _is_of_some(name, said)] or apart
    told = "; ".join(_difference(name, said) for name in apart[:SHOWN])
    return told + (f" and {len(apart) - SHOWN} more" if len(apart) > SHOWN else "")


def _is_of_some(name: str, said: Mapping[str, Facts]) -> bool:
    """Whether it is an option of a strategy that some workers do not have."""
    return "_configs[" in name and any(name not in own for own in said.values())


def _difference(name: str, said: Mapping[str, Facts]) -> str:
    values: dict[str, list[str]] = {}
    for worker, own in said.items():
        values.setdefault(own.get(name, "not set"), []).append(worker)
    told = [
        f"{value} on worker{'s' * (len(who) > 1)} {', '.join(who)}" for value, who in values.items()
    ]
    return f"{name} is {' and '.join(told)}"

"""What workers must have in common, compared before it can lead them apart."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fleetx.engine.engine import Engine
from fleetx.plan.error import PlanError
from fleetx.plan.plan import Plan
from fleetx.roles.session import world

Facts = dict[str, str]
"""What it is, in the user's words -> its value."""
SHOWN = 4
"""Differences that a complaint names."""


def agree_on_plan(plan: Plan) -> None:
    """Refuse, on every worker, plans that differ; all workers must call it."""
    facts = {f"strategy.{name}": repr(value) for name, value in plan.options.items()}
    facts |= {f"the degree of {axis}": str(ranks) for axis, ranks in plan.mesh.items()}
    facts |= {f"strategy.{s.name}": "True" for s in plan.strategies if not s.internal}
    _compare("fleet.distributed_model()", facts | _configs(plan))


def agree_on_update(engine: Engine) -> None:
    """The same for the update rule and its numbers, as they are at the first update."""
    optimizer = engine.job.optimizer
    assert optimizer is not None
    facts = {"the optimizer": type(optimizer).__name__}
    if engine.job.size("pp") == 1:
        facts |= _groups(optimizer.param_groups)
        for at, group in enumerate(optimizer.param_groups):
            names = [engine.names[parameter] for parameter in group["params"]]
            facts[f"the parameters of group {at}"] = _digest(names)
    elif engine.given is not None:
        # Stages hold others, of which strategies may make other groups: as the user gave them.
        facts |= _groups([group.options for group in engine.given.groups])
    # Once more the plan, for a clipping that came with an optimizer.
    _compare("the first update", facts | _configs(engine.plan))


def _groups(groups: Sequence[Mapping[str, Any]]) -> Facts:
    return {
        f"{name} of group {at}": value
        for at, group in enumerate(groups)
        for name, value in _numbers(group).items()
    }


def _configs(plan: Plan) -> Facts:
    return {
        f"{strategy.name}_configs[{name!r}]": repr(value)
        for strategy in plan.strategies
        for name, value in strategy.config.values().items()
    }


def _numbers(group: Mapping[str, Any]) -> Facts:
    """The options of a group that are plain values; the others speak of what this worker holds."""
    found: Facts = {}
    for name, value in group.items():
        if isinstance(value, Tensor) and value.numel() == 1:
            found[name] = repr(float(value))
        elif name == "betas" or isinstance(value, bool | int | float | str | None):
            found[name] = repr(value)
    return found


def _digest(names: Sequence[str]) -> str:
    text = "\n".join(names)
    return f"{len(names)} ({hashlib.sha256(text.encode()).hexdigest()[:8]})"


def _compare(call: str, facts: Facts) -> None:
    """One small exchange; everybody sees what all said, so everybody complains or nobody does."""
    here = world("distributed_model")
    if here.meeting is None or here.identity.worker_num == 1:
        return
    if not here.identity.is_collective:
        return  # workers of a job with servers come and go; servers compare what they are told
    said = [json.loads(own) for own in here.meeting.tell(call, json.dumps(facts))]
    names = dict.fromkeys(name for own in said for name in own)
    apart = [name for name in names if len({own.get(name) for own in said}) > 1]
    if apart:
        told = "; ".join(_difference(name, said) for name in apart[:SHOWN])
        more = f" and {len(apart) - SHOWN} more" if len(apart) > SHOWN else ""
        raise PlanError(
            f"workers differ where they must agree: {told}{more}. Each would train in its own way "
            "and drift apart; set the same strategy, the same optimizer and the same numbers on "
            "every worker."
        )


def _difference(name: str, said: list[Facts]) -> str:
    values: dict[str, list[str]] = {}
    for worker, own in enumerate(said):
        values.setdefault(own.get(name, "not set"), []).append(str(worker))
    told = [
        f"{value} on worker{'s' * (len(who) > 1)} {', '.join(who)}" for value, who in values.items()
    ]
    return f"{name} is {' and '.join(told)}"

"""Steps of optimizers that go past the plan of a distributed model: seen, and judged."""

import functools
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fleetx.plan.error import PlanError
from fleetx.plan.job import Job
from fleetx.plan.strategy import Plan
from fleetx.torch_internals import current_backward


class Watched(Protocol):
    """What is known of a distributed model: the engine, which is to the right of this file."""

    plan: Plan
    job: Job

    @property
    def names(self) -> Mapping[Tensor, str]:
        """The user's parameters and those that run -> their names."""


_engines: "weakref.WeakSet[Watched]" = weakref.WeakSet()
_here = threading.local()


def watch_over(engine: Watched) -> None:
    """Look at every later step of every optimizer that would move parameters of this model."""
    _look_at_all_steps()
    _engines.add(engine)


def in_plan() -> bool:
    """Whether this thread runs what a plan makes of a batch."""
    return getattr(_here, "depth", 0) > 0


@contextmanager
def plan_at_work() -> Iterator[None]:
    """Steps inside of it are the plan's own, those of optimizers inside of its optimizer too."""
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        yield
    finally:
        _here.depth -= 1


@functools.cache
def _look_at_all_steps() -> None:
    # Torch calls it for every optimizer of the process, those made before us too. It stays, once
    # for all: a second one would judge twice, and without engines there is nothing to look through.
    register_optimizer_step_pre_hook(_judge)


def _judge(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if in_plan():
        return
    moved = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for engine in tuple(_engines):  # one may be freed meanwhile, which changes the set
        if (name := _first_known(engine, moved)) is not None:
            _refuse(engine, optimizer, name)


def _first_known(engine: Watched, moved: list[Tensor]) -> str | None:
    """The name of a parameter that is the model's, or was before it was laid out."""
    for parameter in moved:
        if parameter in engine.names:
            return engine.names[parameter]
    return None


def _refuse(engine: Watched, optimizer: Optimizer, name: str) -> None:
    left_out = [word for s in engine.plan.strategies for word in s.at_update(engine.job)]
    held = {id(parameter) for parameter in engine.job.model.parameters()}
    stale = any(
        id(p) not in held and p in engine.names for g in optimizer.param_groups for p in g["params"]
    )
    if stale:
        left_out.append(f"the layout, which has replaced {name!r}")
    if current_backward() >= 0 and engine.job.mesh.size() > 1:
        left_out.append("the exchange of gradients, which the backward that calls it has not made")
    if left_out:
        raise PlanError(
            f"{type(optimizer).__name__}.step() moves parameters of a distributed model past the "
            f"plan, which would lose what it does or checks at an update: {', '.join(left_out)}. "
            "Call optimizer = fleet.distributed_optimizer(optimizer) and step what it returns."
        )

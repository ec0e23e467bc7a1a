"""First values: what running a start-up program does."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from fleetx import roles
from fleetx.comm.replicas import start_equal
from fleetx.static.error import ProgramError
from fleetx.static.interception import paused

if TYPE_CHECKING:
    from fleetx.static.minimize import Training
    from fleetx.static.program import Program
    from fleetx.static.state import State


@dataclass
class Initial:
    """How the parameters of one layer get their first values."""

    module: nn.Module
    reset: Callable[[], None] | None
    """Draws the values; None for a module that the user made, which has its own already."""
    done: bool = False
    again: bool = False
    """Whether the start-up program ran before, so that the module may have been trained."""
    loaded: set[int] = field(default_factory=set)
    """Those of its tensors that got values from files before it started."""
    state: "State | None" = None
    """Of a program that has the module: the one that trains it in parts, if there is one."""
    trainings: "list[weakref.ref[Training]]" = field(default_factory=list)
    """Those that move the module's parameters."""


def initialise(startup: "Program", device: torch.device) -> None:
    """Give every layer its first values, the same ones on every worker; trainings begin anew."""
    if startup.random_seed:
        torch.manual_seed(startup.random_seed)
    known = (initial.state for initial in startup.initial.values())
    states = {state for state in known if state is not None}
    for state in states:
        state.gather("static.Executor.run")
    with paused():
        for training in _begun(startup):
            training.restart()
        for name, initial in startup.initial.items():
            _draw(name, initial)
            initial.module.to(device)
            initial.done = initial.again = True
    if roles.started() and roles.worker_num() > 1 and roles.identity().is_collective:
        everything = nn.ModuleList(initial.module for initial in startup.initial.values())
        group = dist.group.WORLD
        assert group is not None
        start_equal(everything, group)
    for state in states:
        state.deal()


def _begun(startup: "Program") -> "list[Training]":
    """Trainings whose parameters get new values, which their optimizers know nothing of."""
    drawn = [i for i in startup.initial.values() if i.reset is not None or i.again]
    found = {id(training): training for i in drawn for at in i.trainings if (training := at())}
    return list(found.values())


@torch.no_grad()
def _draw(name: str, initial: Initial) -> None:
    if initial.reset is not None:
        initial.reset()
    elif initial.again:
        for path, part in initial.module.named_modules(prefix=name):
            if any(True for _ in part.parameters(recurse=False)):
                _reset(path, part)


def _reset(path: str, part: nn.Module) -> None:
    reset = getattr(part, "reset_parameters", None)
    if reset is None:
        raise ProgramError(
            f"the start-up program ran before, and {path!r} ({type(part).__name__}) has no "
            "reset_parameters() with which its first values could be drawn again; give it one, or "
            "run the start-up program once."
        )
    reset()


def check_initialised(startup_layers: "dict[str, Initial]") -> None:
    """Refuse to run layers whose parameters have no values yet."""
    missing = [name for name, initial in startup_layers.items() if not initial.done]
    if missing:
        raise ProgramError(
            f"the parameters of {', '.join(missing[:3])} have no values yet; run the start-up "
            "program first: exe.run(static.default_startup_program())."
        )

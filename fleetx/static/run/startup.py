"""First values: what running a start-up program does."""

import logging
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from fleetx import roles
from fleetx.comm.replicas import start_equal
from fleetx.record.error import ProgramError
from fleetx.record.initial import Initial
from fleetx.record.recording_state import paused
from fleetx.record.state import State
from fleetx.static.record.program import Program
from fleetx.static.run.training import Training

_log = logging.getLogger(__name__)


def initialise(startup: Program, device: torch.device) -> None:
    """Give every layer its first values.

    Trainings that begin with this program begin anew, with the same values on every worker. One
    that begins with another, of which a program for tests shares the parameters, does not: a
    worker may run the start-up program of tests alone.
    """
    if startup.random_seed:
        torch.manual_seed(startup.random_seed)
    known = (initial.state for initial in startup.initial.values())
    states = {state for state in known if state is not None}
    trainings = _trainings(startup.initial.values())
    own = [training for training in trainings if training.begins_with(startup)]
    if trainings and not own:
        _check_others(trainings, states)
    for state in states:
        state.gather("static.Executor.run")
    with paused():
        for training in own:
            training.restart()
        for name, initial in startup.initial.items():
            _draw(name, initial)
            initial.module.to(device)
            initial.done = initial.again = True
    if any(training.distributed for training in own) and roles.identity().is_collective:
        everything = nn.ModuleList(initial.module for initial in startup.initial.values())
        group = dist.group.WORLD
        assert group is not None
        start_equal(everything, group)
    for state in states:
        state.deal()


def _trainings(initials: Iterable[Initial]) -> list[Training]:
    """Trainings whose parameters get new values, which their optimizers know nothing of."""
    drawn = [i for i in initials if i.reset is not None or i.again]
    found = {id(training): training for i in drawn for at in i.trainings if (training := at())}
    return [training for training in found.values() if isinstance(training, Training)]


def _check_others(trainings: Iterable[Training], states: Iterable[State]) -> None:
    if any(state.spread is not None for state in states):
        raise ProgramError(
            "the start-up program of another program would draw parameters anew that are being "
            "trained, of which each worker has a part; let values for tests have a scope of their "
            "own (scope_guard), or clone(for_test=True) the program that is trained."
        )
    if any(training.run is not None and training.distributed for training in trainings):
        _log.warning(
            "the start-up program of another program draws parameters anew that are being trained, "
            "on this worker alone: load values now, or give tests a scope of their own."
        )


@torch.no_grad()
def _draw(name: str, initial: Initial) -> None:
    if initial.reset is not None:
        initial.draw()
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

"""First values: what running a start-up program does."""

import torch
import torch.distributed as dist
from torch import nn

from fleetx import roles
from fleetx.comm.replicas import start_equal
from fleetx.static.record.error import ProgramError
from fleetx.static.record.initial import Initial
from fleetx.static.record.program import Program
from fleetx.static.record.recording_state import paused
from fleetx.static.run.training import Training


def initialise(startup: Program, device: torch.device) -> None:
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


def _begun(startup: Program) -> list[Training]:
    """Trainings whose parameters get new values, which their optimizers know nothing of."""
    drawn = [i for i in startup.initial.values() if i.reset is not None or i.again]
    found = {id(training): training for i in drawn for at in i.trainings if (training := at())}
    return [training for training in found.values() if isinstance(training, Training)]


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

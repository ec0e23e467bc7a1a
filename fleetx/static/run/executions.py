"""What executors keep with a program, so that it goes when the program goes."""

from dataclasses import dataclass, field

import torch

from fleetx.static.record.program import Program
from fleetx.static.run.runs import Run
from fleetx.static.run.training import training_of


@dataclass
class Executions:
    """What was made of one program in order to run it."""

    forward: dict[torch.device, Run] = field(default_factory=dict)
    """Its runs without training."""
    alone: Program | None = None
    """The same training without exchange between workers, once it was asked for."""


def executions(program: Program) -> Executions:
    """What is kept with a program."""
    kept: Executions | None = program.attachments.get(Executions)
    if kept is None:
        kept = program.attachments.setdefault(Executions, Executions())
    return kept


def has_run(program: Program) -> bool:
    """Whether an executor has prepared it."""
    training = training_of(program)
    return bool(executions(program).forward) or (training is not None and training.run is not None)

"""What a checkpoint is of: a model with its optimizer, or a program with its executor."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import nn

from fleetx import roles
from fleetx.api import session
from fleetx.api.optimizer import DistributedOptimizer
from fleetx.expected import Kind
from fleetx.io.agreement import CheckpointError
from fleetx.io.run_state import RunState
from fleetx.static.record.program import Program
from fleetx.static.run.compiled import CompiledProgram
from fleetx.static.run.executor import Executor
from fleetx.static.run.training import Training, training_of
from fleetx.static.run.training_run import running

Model = nn.Module | Program | CompiledProgram
Mover = DistributedOptimizer | Executor

CLOCK = "runs of the program"
"""The name of the part that a program brings along."""


class Stateful(Protocol):
    """A loader, a scheduler: whatever knows its own state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Take it back."""


@runtime_checkable
class Summed(Protocol):
    """A part whose states of several workers add up, as the counts of a metric do."""

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]], /) -> None:
        """Go on for the workers that had these; without any, begin anew."""


def _are_stateful(parts: object) -> bool:
    names = ("state_dict", "load_state_dict")
    return isinstance(parts, Mapping) and all(
        callable(getattr(part, name, None)) for part in parts.values() for name in names
    )


PARTS = Kind(
    "a dict of loaders, schedulers and the like by name, which have state_dict() and "
    "load_state_dict() (values that have not are for numbers)",
    _are_stateful,
)


def _nothing() -> None: ...


@dataclass(frozen=True)
class Trained:
    """A model that is trained, and what it has to be told."""

    state: RunState
    parts: Mapping[str, Stateful] = field(default_factory=dict)
    """What is saved with it besides."""
    changed: Callable[[], None] = _nothing
    """Called when its values were loaded."""


class _Clock:
    """The runs of a program so far, which learning-rate schedules count."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def state_dict(self) -> dict[str, Any]:
        return {"ticks": self._training.ticks}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._training.ticks = state_dict["ticks"]


def trained(call: str, model: Model, optimizer: Mover) -> Trained:
    """What a call saves or loads; programs are begun if they have not run."""
    if isinstance(model, nn.Module) and isinstance(optimizer, DistributedOptimizer):
        return Trained(_of_model(call, optimizer))
    if isinstance(model, Program | CompiledProgram) and isinstance(optimizer, Executor):
        program = model.prepared() if isinstance(model, CompiledProgram) else model
        return _of_program(call, program, optimizer)
    raise TypeError(
        f"{call}() takes a model with its optimizer, or a program with its executor; got a "
        f"{type(model).__name__} with a {type(optimizer).__name__}."
    )


def _of_model(call: str, optimizer: DistributedOptimizer) -> RunState:
    for engine in session.current(call).engines:
        if optimizer.steers(engine):
            return RunState(engine, optimizer)
    raise CheckpointError(
        "a checkpoint is that of an optimizer and the model that it moves; call "
        "fleet.distributed_model() and fleet.distributed_optimizer() first."
    )


def _of_program(call: str, program: Program, executor: Executor) -> Trained:
    roles.identity(call)  # a sentence without fleet.init(), before anything is laid out
    training = training_of(program)
    if training is None:
        raise CheckpointError(
            f"{call}() was given a program without an optimizer, which has nothing to go on with; "
            "give the one that minimize() was called in, or save values with save_persistables()."
        )
    if training.origin is not None:
        raise CheckpointError(
            f"{call}() was given a program that goes on with the training of another one; give "
            "the program that minimize() was called in."
        )
    run = running(program, executor.device)
    assert training.wrapper is not None

    def changed() -> None:
        if program.state.spread is not None:
            program.state.spread.moved()

    return Trained(RunState(run.engine, training.wrapper), {CLOCK: _Clock(training)}, changed)

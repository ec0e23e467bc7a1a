"""``minimize``: from a loss to a program that trains."""

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import optim as torch_optim
from torch.utils._pytree import tree_map

from fleetx.api.optimizer import DistributedOptimizer
from fleetx.engine.engine import Engine
from fleetx.expected import a, expect
from fleetx.plan.strategy import Plan
from fleetx.static.backward import GRADIENT, check_loss, trainable
from fleetx.static.error import ProgramError
from fleetx.static.interception import paused
from fleetx.static.lr import NAME
from fleetx.static.optimizer import Optimizer
from fleetx.static.program import Program
from fleetx.static.variable import Variable

if TYPE_CHECKING:
    from fleetx.api.grad_clip import GradClip
    from fleetx.static.training_run import TrainingRun

Entries = Iterable[Tensor | str]

_OPTIMIZER = a(
    Optimizer | torch_optim.Optimizer,
    "static.Optimizer(torch.optim.SGD, lr=0.1), or a torch optimizer over the program's parameters",
)

_beginning = threading.RLock()


@dataclass
class Training:
    """That a program ends in an update, and everything that the update needs."""

    loss: str
    optimizer: Optimizer | torch_optim.Optimizer
    trained: tuple[str, ...]
    """Names of the parameters that move."""
    plan: Plan | None = None
    """What the strategies make of it; None trains alone."""
    wrapper: DistributedOptimizer | None = None
    """What the user holds of a distributed optimizer."""
    grad_clip: "GradClip | None" = None
    ticks: int = 0
    """Runs so far, which learning-rate schedules count."""
    run: "TrainingRun | None" = None
    at_start: list[Callable[[], None]] = field(default_factory=list)
    """What waits for the first run: state that was loaded before there was an optimizer."""
    first: dict[str, Any] = field(default_factory=dict)
    """What optimizer and strategies kept before the first run."""
    origin: Program | None = None
    """The program whose training this one continues without exchange between workers."""

    @property
    def distributed(self) -> bool:
        """Whether other workers take part."""
        return self.plan is not None and self.origin is None

    def flags(self, program: Program) -> list[tuple[nn.Parameter, bool]]:
        """Every parameter of the program, and whether it moves."""
        names = set(self.trained)
        return [(p, name in names) for name, p in program.state.trained().items()]

    def bind(
        self, program: Program, engine: Engine, *, fused: bool = False
    ) -> torch_optim.Optimizer:
        """Give the engine its optimizer; return the one that runs."""
        if self.origin is not None:
            return engine.attach(running(self.origin, engine.job.device).optimizer)
        optimizer = self.optimizer
        if isinstance(optimizer, Optimizer):
            parameters = program.state.trained()
            chosen = [parameters[name] for name in self.trained]
            optimizer = optimizer.build(chosen, fused=fused)
        elif fused:
            raise ProgramError(
                "build_strategy.fuse_all_optimizer_ops = True speaks of the optimizer that a "
                "program makes, but yours exists; make it with foreach=True instead."
            )
        self.wrapper = self.wrapper or DistributedOptimizer(optimizer, self.grad_clip)
        self.wrapper.bind(engine)
        assert engine.job.optimizer is not None
        return engine.job.optimizer

    def remember(self) -> None:
        """Keep what there is before the first run, for a training that begins anew."""
        if self.wrapper is not None:
            kept = self.wrapper.state_dict()
            self.first = _copied({k: v for k, v in kept.items() if k != "param_groups"})

    def restart(self) -> None:
        """Forget what was learned beside the parameters, and what was loaded for a first run."""
        self.ticks = 0
        self.at_start.clear()
        if self.run is not None and self.wrapper is not None:
            self.wrapper.load_state_dict({**self.wrapper.state_dict(), **_copied(self.first)})

    def tick(self, optimizer: torch_optim.Optimizer) -> None:
        """Set the learning rate of this run."""
        clock = self.clock()
        schedule = getattr(self.optimizer, "schedule", None)
        if schedule is not None:
            for group in optimizer.param_groups:
                group["initial_lr"], group["lr"] = schedule(0), schedule(clock.ticks)
        clock.ticks += 1

    def clock(self) -> "Training":
        """The training that counts runs for this one."""
        if self.origin is None:
            return self
        assert self.origin.training is not None
        return self.origin.training

    def rate(self, optimizer: torch_optim.Optimizer) -> float:
        """The learning rate in force."""
        return float(optimizer.param_groups[0]["lr"])

    @property
    def rate_name(self) -> str:
        """The name under which the learning rate is fetched."""
        return NAME

    def provided(self, program: Program) -> set[str]:
        """Names that are fetched from the training itself, not from an operator."""
        own = {self.rate_name, *(f"{name}{GRADIENT}" for name in self.trained)}
        return own - program.names.keys()


def _copied(kept: Any) -> Any:
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, kept)


def running(program: Program, device: torch.device) -> "TrainingRun":
    """The run of a program that trains, begun if it has not."""
    from fleetx.static.training_run import TrainingRun

    training = program.training
    assert training is not None
    with _beginning:
        if training.run is None:
            with paused():
                training.run = TrainingRun(program, training, device)
                training.remember()
            for restore in training.at_start:
                restore()
            training.at_start.clear()
    return training.run


def minimize(
    optimizer: Optimizer | torch_optim.Optimizer,
    loss: Tensor,
    startup_program: Program | None = None,
    parameter_list: Entries | None = None,
    no_grad_set: Iterable[Tensor | str] | None = None,
    *,
    plan: Plan | None = None,
    wrapper: DistributedOptimizer | None = None,
    grad_clip: "GradClip | None" = None,
) -> tuple[list[Any], list[tuple[str, str]]]:
    """Let every run of the loss's program end in an update by ``optimizer``.

    Args:
        optimizer: ``static.Optimizer(torch.optim.SGD, lr=0.1)``, or a torch optimizer over
            parameters of the program.
        loss: the variable to make small.
        startup_program: the one that initialises; None for the default one.
        parameter_list: train these alone; all that the loss depends on if None.
        no_grad_set: variables that gradients do not pass.
        plan: what strategies make of it.
        wrapper: what the user holds of a distributed optimizer.
        grad_clip: limits gradients before they are used.

    Returns:
        An empty list, for the place of the operators that Paddle returns, and the names of
        parameters with those of their gradients, which can be fetched.
    """
    expect("static.minimize", "optimizer", optimizer, _OPTIMIZER)
    loss = check_loss(loss)
    program = loss.program
    if program.training is not None:
        raise ProgramError(
            "minimize() was called on a program that has an optimizer already, and a run makes one "
            "update; clone the program before the first minimize() for a second optimizer."
        )
    if startup_program is not None and not isinstance(startup_program, Program):
        raise TypeError(f"startup_program is a static.Program, got {startup_program!r}")
    names = _trained(program, loss, optimizer, parameter_list, no_grad_set)
    program.training = Training(loss.name, optimizer, names, plan, wrapper, grad_clip)
    for initial in program.layers.values():
        initial.trainings.append(weakref.ref(program.training))
    program.changed()
    return [], [(name, f"{name}{GRADIENT}") for name in names]


def _trained(
    program: Program,
    loss: Variable,
    optimizer: Optimizer | torch_optim.Optimizer,
    parameter_list: Entries | None,
    no_grad_set: Iterable[Tensor | str] | None,
) -> tuple[str, ...]:
    if parameter_list is None and isinstance(optimizer, torch_optim.Optimizer):
        parameter_list = [p for group in optimizer.param_groups for p in group["params"]]
    excluded = _stopped(program, no_grad_set)
    names = [n for n in trainable(program, loss.node, parameter_list) if n not in excluded]
    if not names:
        raise ProgramError(
            f"the loss {loss.name!r} depends on no parameter that may be trained, so minimize() "
            "would change nothing; look at parameter_list, no_grad_set and requires_grad."
        )
    return tuple(names)


def _stopped(program: Program, entries: Sequence[Any] | Iterable[Any] | None) -> set[str]:
    """Stop gradients at variables; return the names of parameters among them."""
    names: set[str] = set()
    for entry in entries or ():
        node = program.find(entry)
        if node.op == "get_attr":
            names.add(program.name_of(node))
        else:
            node.meta["stopped"] = True
    return names

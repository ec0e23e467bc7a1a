"""How a program is trained: its optimizer, its plan, and what lives between two runs."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch import optim as torch_optim

from fleetx.api.grad_clip import GradClip
from fleetx.api.optimizer import DistributedOptimizer
from fleetx.engine.engine import Engine
from fleetx.plan.strategy import Plan
from fleetx.record.error import ProgramError
from fleetx.record.objective import Objective
from fleetx.static.lr import NAME
from fleetx.static.record.backward import GRADIENT
from fleetx.static.record.program import Program
from fleetx.static.run.optimizer_options import OptimizerOptions, Schedule
from fleetx.static.run.runs import Run
from fleetx.torch_internals import tree_map

SCALE = "lr_scale"
"""An option of groups whose learning rate is the common one times this."""


@dataclass
class Training(Objective):
    """That a program ends in an update, and everything that the update needs."""

    optimizer: OptimizerOptions | torch_optim.Optimizer
    plan: Plan | None = None
    """What the strategies make of it; None trains alone."""
    wrapper: DistributedOptimizer | None = None
    """What the user holds of a distributed optimizer."""
    grad_clip: GradClip | None = None
    ticks: int = 0
    """Runs so far, which learning-rate schedules count."""
    run: Run | None = None
    """What runs it, once it has begun."""
    at_start: list[Callable[[], None]] = field(default_factory=list)
    """What waits for the first run: state that was loaded before there was an optimizer."""
    first: dict[str, Any] = field(default_factory=dict)
    """What optimizer and strategies kept before the first run."""
    origin: Program | None = None
    """The program whose training this one continues without exchange between workers."""
    startup: "weakref.ref[Program] | None" = None
    """The start-up program with which it begins anew."""

    def begins_with(self, startup: Program) -> bool:
        """Whether a start-up program is this training's own, or as good as its own."""
        own = self.startup() if self.startup is not None else None
        if own is None or own is startup:
            return True
        moved = (at() for initial in own.initial.values() for at in initial.trainings)
        return not any(training is self for training in moved)

    def elsewhere(self) -> "Training":
        """The same training before its first run, for other values of its parameters."""
        return replace(
            self, wrapper=None, ticks=0, run=None, at_start=[], first={}, origin=None, startup=None
        )

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
        optimizer = self.optimizer
        if isinstance(optimizer, OptimizerOptions):
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
        known: dict[Any, tuple[float, float]] = {}
        for group in optimizer.param_groups:
            schedule = self._schedule_of(group)
            if schedule is None:
                continue
            if schedule not in known:
                known[schedule] = schedule(0), schedule(clock.ticks)
            scale, (first, now) = group.get(SCALE, 1.0), known[schedule]
            group["initial_lr"], group["lr"] = first * scale, now * scale
        clock.ticks += 1

    def _schedule_of(self, group: dict[str, Any]) -> Schedule | None:
        if not isinstance(self.optimizer, OptimizerOptions):
            return None
        return self.optimizer.schedule_of(group)

    def clock(self) -> "Training":
        """The training that counts runs for this one."""
        if self.origin is None:
            return self
        found = training_of(self.origin)
        assert found is not None
        return found

    def rate(self, optimizer: torch_optim.Optimizer) -> float:
        """The learning rate in force."""
        group = optimizer.param_groups[0]
        return float(group["lr"]) / (group.get(SCALE) or 1.0)

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


def training_of(program: Program) -> Training | None:
    """What ``minimize`` made of a program; None for one that only computes."""
    found = program.objective
    assert found is None or isinstance(found, Training)
    return found

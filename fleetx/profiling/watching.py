"""Lets a clock of phases follow a script that does not know of it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from fleetx.engine.engine import Engine
from fleetx.profiling.phases import BACKWARD, BETWEEN, DATA, FORWARD, SCRIPT, UPDATE, Phases
from fleetx.roles import activity


class Watching:
    """What was seen of the script besides its phases."""

    def __init__(self, phases: Phases) -> None:
        self.phases = phases
        self.loads = False
        """Whether a ``DataLoader`` of torch gave a batch."""

    def follow(self, engine: Engine) -> None:
        """Notice every forward of a model that trains."""

        def called(module: nn.Module, args: Any) -> None:
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                self.phases.enter(FORWARD)

        engine.job.model.register_forward_pre_hook(called, prepend=True)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Inside, phases are followed."""
        with ExitStack() as stack:
            stack.callback(activity.listeners.remove, self._hear)
            activity.listeners.append(self._hear)
            autograd = torch.autograd
            stack.enter_context(replaced(autograd, "backward", self._backward(autograd.backward)))
            stack.enter_context(replaced(autograd, "grad", self._inside(autograd.grad, BACKWARD)))
            loads = self._loads(DataLoader.__iter__, stack)
            stack.enter_context(replaced(DataLoader, "__iter__", loads))
            yield

    def _hear(self, doing: str) -> None:
        """What the engine begins."""
        if doing == activity.DRIVING:
            self.phases.driven = True
            self.phases.enter(FORWARD)
        elif doing == activity.UPDATING:
            self.phases.driven = False
            self.phases.enter(UPDATE)
        elif doing == activity.READING:
            self.phases.enter(BETWEEN)

    def _backward(self, backward: Callable[..., None]) -> Callable[..., None]:
        @wraps(backward)
        def timed(*args: Any, **kwargs: Any) -> None:
            if self.phases.now == BACKWARD:  # of a checkpoint inside of another backward
                backward(*args, **kwargs)
                return
            self.phases.enter(BACKWARD)
            try:
                backward(*args, **kwargs)
            finally:
                if not self.phases.driven:
                    self.phases.enter(SCRIPT)

        return timed

    def _inside(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.phases.inside(phase):
                return function(*args, **kwargs)

        return timed

    def _loads(self, iterate: Callable[[Any], Any], stack: ExitStack) -> Callable[[Any], Any]:
        """Iterators of torch's loaders are of few classes, and each class is changed once."""
        changed = set[type]()

        def timed(loader: DataLoader[Any]) -> Any:
            with self.phases.inside(DATA):
                batches = iterate(loader)
            self.loads = True
            owner = next(kind for kind in type(batches).__mro__ if "__next__" in vars(kind))
            if owner not in changed:
                changed.add(owner)
                following = self._inside(vars(owner)["__next__"], DATA)
                stack.enter_context(replaced(owner, "__next__", following))
            return batches

        return timed


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, an attribute of a module or a class is another one."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)

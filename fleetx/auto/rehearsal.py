"""What a model's own forward and backward take on a CPU, with all that runs between operators.

An operator that is called again and again finds its code and its memory in the caches, and what a
model's Python does between two operators none of them tells. So the model itself runs: a copy of
it, on one worker, for a few batches of each size that plans have.
"""

import copy
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from typing_extensions import override

from fleetx.plan.job import arguments
from fleetx.plan.samples import mean, sized
from fleetx.plan.whole_call import WholeCall
from fleetx.torch_internals import TorchDispatchMode

ROUNDS = 5
LONGEST = 1.0
"""Seconds after which no round begins: the second one of a batch that takes as long is the last."""
UNKNOWN = (float("nan"), float("nan"))
Step = Callable[[], tuple[float, float]]
"""Runs a batch, and tells the seconds of its forward and of its backward."""


class Rehearsal:
    """Runs copies of models on this machine's CPU."""

    def __init__(self) -> None:
        self._copies: dict[int, tuple[nn.Module, nn.Module, Any]] = {}
        """With the models themselves, so that none of them leaves its number to another."""

    def __call__(self, call: WholeCall, room: float) -> tuple[float, float]:
        """Seconds of a forward and of its backward; not numbers where it cannot run.

        Args:
            call: what is measured.
            room: bytes that it may take.
        """
        if call.needed > room:
            return UNKNOWN
        try:
            with _same_random_numbers():
                step = self._step(call)
                with _Alone():  # type: ignore[no-untyped-call]
                    step()  # the first one allocates
                return _usual(step)
        except Exception:  # a model that runs in no other way than its script's: it is reckoned
            return UNKNOWN

    def _step(self, call: WholeCall) -> Step:
        model, criterion = self._copy(call.model, call.criterion or mean)
        trained = [p for p in model.parameters() if p.requires_grad]
        inputs, targets = (sized(tree, call.samples) for tree in (call.inputs, call.targets))
        args, kwargs = arguments(model, inputs)
        forward: Callable[..., Any] = model
        for change in call.run.changes:
            forward = change(forward)

        def step() -> tuple[float, float]:
            model.zero_grad(set_to_none=True)
            began = time.perf_counter()
            with ExitStack() as around:
                for context in call.run.contexts:
                    around.enter_context(context())
                outputs = forward(*args, **kwargs)
            loss = criterion(outputs, targets)
            middle = time.perf_counter()
            loss.backward(inputs=trained)
            return middle - began, time.perf_counter() - middle

        return step

    def _copy(self, model: nn.Module, criterion: Any) -> tuple[nn.Module, Any]:
        if id(model) not in self._copies:
            if any(p.device.type != "cpu" for p in model.parameters()):
                raise ValueError("it has no numbers, or has them elsewhere")
            self._copies[id(model)] = model, *copy.deepcopy((model, criterion))
        _, own, its_criterion = self._copies[id(model)]
        return own, its_criterion


class _Alone(TorchDispatchMode):
    """Lets nothing exchange with other workers, which do something else meanwhile."""

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace in {"c10d", "_c10d_functional"}:
            raise RuntimeError(f"{func} is of all workers")
        return func(*args, **kwargs or {})


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Afterwards, all generators are where they were."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _usual(step: Step) -> tuple[float, float]:
    """In the middle of some rounds: steps of a job meet others on the machine, too."""
    until, found = time.perf_counter() + LONGEST, [step()]
    while len(found) < ROUNDS and time.perf_counter() < until:
        found.append(step())
    return median(forward for forward, _ in found), median(backward for _, backward in found)

"""What a model's own forward and backward take on a CPU, with all that runs between operators.

An operator that is called again and again finds its code and its memory in the caches, and what a
model's Python does between two operators none of them tells. So the model itself runs: a copy of
it, on one worker, for a few batches of each size that plans have.
"""

import copy
import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any

import torch
from torch import nn

from fleetx.plan.job import arguments
from fleetx.plan.samples import mean, sized
from fleetx.plan.whole_call import WholeCall

ROUNDS = 5
LONGEST = 1.0
"""Seconds after which no round begins: the second one of a batch that takes as long is the last."""
UNKNOWN = (float("nan"), float("nan"))
Step = Callable[[], tuple[float, float]]
"""Runs a batch, and tells the seconds of its forward and of its backward."""


class Rehearsal:
    """Runs copies of models on this machine's CPU."""

    def __init__(self) -> None:
        self._copies: dict[int, nn.Module] = {}

    def __call__(self, call: WholeCall, room: float) -> tuple[float, float]:
        """Seconds of a forward and of its backward; not numbers where it cannot run.

        Args:
            call: what is measured.
            room: bytes that it may take.
        """
        if call.needed > room:
            return UNKNOWN
        try:
            with torch.random.fork_rng([]):
                step = self._step(call)
                step()  # the first one allocates
                return _usual(step)
        except Exception:  # a model that runs in no other way than its script's: it is reckoned
            return UNKNOWN

    def _step(self, call: WholeCall) -> Step:
        model, criterion = self._copy(call.model), call.criterion or mean
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
            loss.backward()
            return middle - began, time.perf_counter() - middle

        return step

    def _copy(self, model: nn.Module) -> nn.Module:
        if id(model) not in self._copies:
            if any(p.device.type != "cpu" for p in model.parameters()):
                raise ValueError("it has no numbers, or has them elsewhere")
            self._copies[id(model)] = copy.deepcopy(model)
        return self._copies[id(model)]


def _usual(step: Step) -> tuple[float, float]:
    """In the middle of some rounds: steps of a job meet others on the machine, too."""
    until, found = time.perf_counter() + LONGEST, [step()]
    while len(found) < ROUNDS and time.perf_counter() < until:
        found.append(step())
    return median(forward for forward, _ in found), median(backward for _, backward in found)

"""A recorder for machines without a GPU: what it records runs again, with the same places."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fleetx.engine.engine import Engine
from fleetx.graph.recording import copied
from fleetx.torch_internals import tree_leaves


class StandInRecorder:
    """Behaves like CUDA's: recording moves nothing, and a replay writes where the record did."""

    engine: Engine
    """Whose numbers a recording must leave alone."""

    def __init__(self, device: torch.device) -> None:
        self.active, self.made = False, list[StandInRecording]()

    def beside(self) -> AbstractContextManager[None]:
        return nullcontext()

    rehearsal = beside

    def record(self, work: Callable[[], Any]) -> "StandInRecording":
        with torch.random.fork_rng():
            held = self._held()
            before = [tensor.detach().clone() for tensor in held]
            recording = StandInRecording(self, work)
            with torch.no_grad():
                for tensor, old in zip(held, before, strict=True):
                    tensor.copy_(old)
        self.made.append(recording)
        return recording

    def _held(self) -> list[Tensor]:
        job = self.engine.job
        assert job.optimizer is not None
        states: list[Any] = [*job.optimizer.state.values()]
        states += [s.state_dict() for s in self.engine.plan.strategies]
        found = [v for state in states for v in state.values() if isinstance(v, Tensor)]
        for strategy in self.engine.plan.strategies:
            found += getattr(strategy, "_state", None) or ()
        gradients = [p.grad for p in job.model.parameters() if p.grad is not None]
        return [*found, *gradients, *job.model.parameters(), *job.model.buffers()]


class StandInRecording:
    """Work, and where it left its result and the gradients."""

    def __init__(self, recorder: StandInRecorder, work: Callable[[], Any]) -> None:
        self._recorder, self._work, self.replays = recorder, work, 0
        self._result, self._gradients = self._run(), self._found()

    def _run(self) -> Any:
        self._recorder.active = True
        try:
            return self._work()
        finally:
            self._recorder.active = False

    def _found(self) -> list[Tensor | None]:
        return [p.grad for p in self._recorder.engine.job.model.parameters()]

    def replay(self) -> Any:
        self.replays += 1
        made = zip(tree_leaves(self._result), tree_leaves(self._run()), strict=True)
        with torch.no_grad():
            for place, value in made:
                place.copy_(value)
        for place, gradient in zip(self._gradients, self._found(), strict=True):
            if place is not None and gradient is not None:
                place.copy_(gradient)
        return copied(self._result)

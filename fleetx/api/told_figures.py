"""What a model's training tells of itself: loss, samples, memory, the plan.

All of it lies in `fleetx.roles.figures`. No step waits for it: a loss is fetched at most twice a
second, and on a GPU it is read when it has arrived.
"""

import contextlib
import time
from typing import Any

import torch
from torch import Tensor

from fleetx.engine.engine import Engine
from fleetx.plan.explain import explain
from fleetx.plan.strategy import Plan
from fleetx.roles import figures
from fleetx.torch_internals import tree_leaves

INTERVAL = 0.5
"""Seconds between two looks."""


class ToldFigures:
    """Looks at the batches of one model now and then."""

    def __init__(self) -> None:
        self._next_size = self._next_loss = 0.0
        self._coming: tuple[Tensor, torch.cuda.Event] | None = None

    def begin(self, engine: Engine) -> None:
        """Tell the plan when it is complete, and where memory can be asked for."""
        engine.attached.append(lambda engine: figures.fact("plan", _described(engine.plan)))
        device = engine.job.device
        if device.type == "cuda":
            figures.source("memory", lambda: _memory(device))
        engine.given_batch.append(self._given)
        engine.finished.append(self._finished)

    def _given(self, engine: Engine, batch: Any) -> None:
        now = time.monotonic()
        if now < self._next_size:
            return
        self._next_size = now + INTERVAL
        sizes = (len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim)
        if size := next(sizes, 0):
            figures.put(batch_size=size)

    def _finished(self, engine: Engine, loss: Tensor | None) -> None:
        now = time.monotonic()
        if now < self._next_loss:
            return
        self._next_loss = now + INTERVAL
        figures.ask()
        if loss is None or loss.numel() != 1 or loss.is_meta:
            return
        if loss.is_cuda:
            with contextlib.suppress(RuntimeError):  # figures must never end a job
                self._fetch(loss.detach())
        else:
            figures.put(loss=float(loss.detach()))

    def _fetch(self, loss: Tensor) -> None:
        """Send a loss on its way to the host; the one before has arrived by now, if it can."""
        if torch.cuda.is_current_stream_capturing():
            return
        if self._coming is not None:
            value, arrived = self._coming
            if not arrived.query():
                return
            figures.put(loss=float(value))
        value = torch.empty((), dtype=loss.dtype, pin_memory=True)
        value.copy_(loss.reshape(()), non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._coming = value, arrived


def _memory(device: torch.device) -> dict[str, float]:
    return {
        "memory": torch.cuda.memory_allocated(device),
        "memory_peak": torch.cuda.max_memory_allocated(device),
        "memory_total": torch.cuda.get_device_properties(device).total_memory,
    }


def _described(plan: Plan) -> dict[str, Any]:
    """The plan as plain values: its mesh, its strategies in their order, its words."""
    strategies = [
        {
            "name": strategy.name,
            "phase": strategy.contract.phase.name.lower(),
            "at_rest": f"strategy.{strategy.name}" in plan.resting,
        }
        for strategy in plan.strategies
        if not strategy.internal
    ]
    return {"mesh": dict(plan.mesh), "strategies": strategies, "words": str(explain(plan))}

"""What is logged without being asked for: speed, memory, traffic, and what strategies tell."""

import logging
import resource
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.engine.engine import Engine
from fleetx.plan.accounts import Accounts
from fleetx.plan.strategy import Plan
from fleetx.plan.subject import Subject
from fleetx.torch_internals import tree_leaves

logger = logging.getLogger(__name__)
Tell = Callable[[Mapping[str, float], int], None]
"""Takes numbers by name, and the step that they belong to."""


class Meter:
    """Looks at every batch of this worker and tells of every few updates.

    Args:
        tell: takes the numbers.
        every: updates between two reports.
        workers: of the job, for one whose workers meet at servers and share data all the same.
    """

    def __init__(self, tell: Tell, every: int, workers: int = 1) -> None:
        self._tell, self._every, self._workers = tell, every, workers
        self._gauges: list[_Gauge] = []

    @property
    def updates(self) -> int:
        """How many updates the models of this job have seen, the most of them."""
        return max((gauge.updates for gauge in self._gauges), default=0)

    def follow(
        self, plan: Plan, model: nn.Module, sample: Any, criterion: Any
    ) -> Callable[[Engine], None]:
        """Look at a model that is about to be laid out; what to do with its engine then."""
        sent = _sent(plan, Subject(model=model, sample=sample, criterion=criterion))
        shares = plan.mesh["dp"] * plan.mesh["sharding"] * self._workers

        def join(engine: Engine) -> None:
            number = len(self._gauges) + 1
            prefix = "fleetx/" if number == 1 else f"fleetx/model_{number}/"
            gauge = _Gauge(self._tell, self._every, prefix, shares=shares, sent=sent)
            self._gauges.append(gauge)
            engine.given_batch.append(gauge.given)
            engine.finished.append(gauge.finished)

        return join

    def rest(self) -> None:
        """Tell of the updates since the last report."""
        for gauge in self._gauges:
            gauge.report()


class _Gauge:
    """One model."""

    def __init__(
        self, tell: Tell, every: int, prefix: str, *, shares: int, sent: float | None
    ) -> None:
        self._tell, self._every, self._prefix = tell, every, prefix
        self._shares, self._sent = shares, sent
        self.updates = 0
        self._told = 0
        """The update of the last report."""
        self._since: float | None = None
        self._samples = self._batch = 0
        self._engine: Callable[[], Engine | None] = lambda: None
        """Weakly, because a model that nobody uses any more shall free its memory."""

    def given(self, engine: Engine, batch: Any) -> None:
        """A batch begins."""
        if self._since is None:
            self._since = time.perf_counter()
        # A script may call its model several times for one batch.
        self._batch = max(self._batch, _samples(batch))

    def finished(self, engine: Engine, loss: Tensor | None) -> None:
        """It is over."""
        self._samples += self._batch
        self._batch = 0
        self.updates = engine.updates
        self._engine = weakref.ref(engine)
        if self.updates - self._told >= self._every:
            self.report()

    def report(self) -> None:
        """Tell of the updates since the last time."""
        made = self.updates - self._told
        if made <= 0 or self._since is None:
            return
        now = time.perf_counter()
        passed = max(now - self._since, 1e-9)
        found = {
            "step_seconds": passed / made,
            "samples_per_second": self._samples * self._shares / passed,
            **_measures(self._engine()),
        }
        if self._sent is not None:
            found["exchange_bytes"] = self._sent
        self._told, self._since, self._samples = self.updates, now, 0
        self._tell({f"{self._prefix}{name}": value for name, value in found.items()}, self.updates)


def _samples(batch: Any) -> int:
    """How many samples a batch has: the length of its first tensor."""
    leaves = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim)
    first = next(leaves, None)
    return 0 if first is None else int(first.shape[0])


def _measures(engine: Engine | None) -> dict[str, float]:
    if engine is None:
        return {}
    told = {"memory_bytes": _memory(engine.job.device)}
    for strategy in engine.plan.strategies:
        told |= {name: float(value) for name, value in strategy.measures().items()}
    return told


def _memory(device: torch.device) -> float:
    """The most that was allocated on a card so far; without one, the most that the process held."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def _sent(plan: Plan, subject: Subject) -> float | None:
    """Bytes that this worker sends for each update, as ``explain()`` tells; None if unknown."""
    try:
        return Accounts(plan, subject)[0].sent
    except Exception as error:  # a model that cannot be copied, say, trains all the same
        logger.warning("the bytes of exchanges are not known and not logged: %s", error)
        return None

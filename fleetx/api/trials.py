"""A few updates of a copy of the model under a plan, on all workers, to see what they take."""

import copy
import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fleetx import roles
from fleetx.api.session import Given, mesh
from fleetx.engine.engine import Engine
from fleetx.plan.optimizer_spec import OptimizerSpec
from fleetx.plan.samples import mean, sized
from fleetx.plan.strategy import Plan
from fleetx.torch_internals import tree_map

logger = logging.getLogger(__name__)
UPDATES = 3
WARM_UP = {"cpu": 1, "cuda": 14}
"""Updates before those that count; a card captures and compiles meanwhile."""


class Trial:
    """Runs plans for a model that nobody has laid out yet, and leaves it as it is.

    Args:
        shown: what was passed to ``distributed_model``; the sample has the inputs of one batch.
        rule: the optimizer.
        who: wants to know, for what is said of plans that cannot run.
    """

    def __init__(self, shown: Given, rule: OptimizerSpec, who: str = "strategy.auto") -> None:
        self._shown, self._rule, self._who = shown, rule, who

    @property
    def why_not(self) -> str:
        """Why the model cannot be tried; empty if it can."""
        model = self._shown.model
        if any(p.is_meta for p in model.parameters()):
            return "it lies on the meta device, without numbers"
        try:
            copy.deepcopy(model)
        except Exception as error:  # whatever a user's module has that cannot be copied
            return f"it cannot be copied ({type(error).__name__}: {error})"
        return ""

    def took(
        self,
        plan: Plan,
        batch: int,
        merged: int,
        updates: int = UPDATES,
        clock: Callable[[], float] = time.perf_counter,
    ) -> float:
        """Seconds of an update on this worker; all workers call it with the same.

        Args:
            plan: how the model is laid out.
            batch: samples of a share of the data that run together.
            merged: batches of an update.
            updates: how many are timed, of which the fastest counts.
            clock: what they are timed with.
        """
        with as_it_was(), _without_notes():
            try:
                engine = self._engine(plan, batch)
            except Exception as error:  # on all workers: a plan that the model refuses
                return self._left_out(error)
            try:
                return _fastest(engine, self._data(batch), merged, updates, clock)
            except Exception as error:
                if roles.identity().worker_num > 1:  # others wait in an exchange that never ends
                    raise
                return self._left_out(error)

    def _left_out(self, error: Exception) -> float:
        logger.warning("%s leaves out a plan that cannot run: %s", self._who, error)
        return float("inf")

    def _engine(self, plan: Plan, batch: int) -> Engine:
        shown = self._shown
        criterion = shown.criterion if shown.targets is not None else mean
        engine = Engine(
            plan,
            copy.deepcopy(shown.model),
            device=roles.device(),
            mesh=mesh(plan),
            criterion=criterion,
            sample=sized(shown.sample, batch),
        )
        engine.attach(self._optimizer(engine.job.model))
        return engine

    def _optimizer(self, model: nn.Module) -> Optimizer:
        trained = [p for p in model.parameters() if p.requires_grad]
        return self._rule.cls(trained, **self._rule.accepted)

    def _data(self, batch: int) -> Any:
        targets = self._shown.targets
        targets = torch.zeros(batch) if targets is None else sized(targets, batch)
        return tree_map(_placed, [sized(self._shown.sample, batch), targets])


def _fastest(
    engine: Engine, data: Any, merged: int, updates: int, clock: Callable[[], float]
) -> float:
    times = [_update(engine, data, merged, clock) for _ in range(_warm_up() + updates)]
    return min(times[-updates:])


def _update(engine: Engine, data: Any, merged: int, clock: Callable[[], float]) -> float:
    began = clock()
    for _ in range(merged):
        engine.train_batch(data)
    if roles.device().type == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def _warm_up() -> int:
    return WARM_UP.get(roles.device().type, max(WARM_UP.values()))


@contextmanager
def as_it_was() -> Iterator[None]:
    """What is drawn at random inside is drawn again after it, and memory is given back."""
    cards = [roles.device()] if roles.device().type == "cuda" else []
    with torch.random.fork_rng(cards):
        yield
    gc.collect()
    if cards:
        torch.cuda.empty_cache()


@contextmanager
def _without_notes() -> Iterator[None]:
    """Without what strategies say of a plan, which may never be the job's; warnings stay."""
    ours = logging.getLogger("fleetx")
    before = ours.level
    ours.setLevel(max(ours.getEffectiveLevel(), logging.WARNING))
    try:
        yield
    finally:
        ours.setLevel(before)


def _placed(leaf: Any) -> Any:
    return leaf.to(roles.device()) if isinstance(leaf, Tensor) else leaf

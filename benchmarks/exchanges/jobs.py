"""A job under some flags, which is trained update by update and timed."""

import time
from collections.abc import Mapping
from typing import Any

import torch

import fleetx as fleet
from benchmarks.exchanges.cases import strategy_of
from benchmarks.exchanges.models import MODELS
from benchmarks.exchanges.worker import sent_and_received, together
from fleetx import roles


class Job:
    """One model, trained through fleetx."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        given = MODELS[name]
        strategy = strategy_of(settings)
        fleet.init(is_collective=True, strategy=strategy)
        torch.manual_seed(fleet.worker_index())
        sample, targets = given.batch()
        self._model: Any = fleet.distributed_model(
            given.made(), criterion=given.criterion, sample=sample
        )
        fleet.distributed_optimizer(given.optimizer(self._model))
        self._batch = sample, targets
        self._batches = _batches(strategy)

    def timed(self, updates: int) -> dict[str, Any]:
        """Seconds of an update and of the processor, and bytes that this worker's link saw."""
        before = sent_and_received()
        busy = time.process_time()
        began = together()
        for _ in range(updates * self._batches):
            self._model.train_batch(self._batch)
        seconds = (time.perf_counter() - began) / updates
        busy = (time.process_time() - busy) / updates
        together()
        after = sent_and_received()
        sent, received = ((b - a) / updates for a, b in zip(before, after, strict=True))
        return {"seconds": seconds, "busy": busy, "sent": sent, "received": received}

    def stop(self) -> None:
        """End the job; the workers stay."""
        del self._model
        roles.stop()


def _batches(strategy: fleet.DistributedStrategy) -> int:
    """How many make an update."""
    return int(strategy.gradient_merge_configs["k_steps"]) if strategy.gradient_merge else 1

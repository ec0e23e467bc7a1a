"""One loop, run by plain torch on the whole batch and by workers on their shares of it."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import fleetx as fleet
from fleetx import roles

STEPS, BATCH = 4, 8


class Here:
    """Where a loop runs: what differs between a plain script and one with the lines of fleetx."""

    def __init__(self, distributed: bool) -> None:
        self.distributed = distributed
        self._begun: list[tuple[nn.Module, dict[str, Tensor]]] = []
        """Each model, and the numbers with which it began."""

    def have_moved(self) -> bool:
        """Whether every model learned something."""
        return all(
            max(float((_numbers(model)[name] - first[name]).abs().max()) for name in first) > 1e-3
            for model, first in self._begun
        )

    def model(self, model: Any) -> Any:
        self._begun.append((model, _numbers(model)))
        return fleet.distributed_model(model) if self.distributed else model

    def optimizer(self, optimizer: Any) -> Any:
        return fleet.distributed_optimizer(optimizer) if self.distributed else optimizer

    def share(self, whole: Any) -> Any:
        """What this process gets of a batch: a tensor, or a dict or tuple of them."""
        if isinstance(whole, dict):
            return {name: self.share(value) for name, value in whole.items()}
        if isinstance(whole, tuple):
            return tuple(map(self.share, whole))
        return whole[fleet.worker_index() :: fleet.worker_num()] if self.distributed else whole

    def batches(self, steps: int = STEPS) -> Iterator[Any]:
        """Vectors and classes."""
        generator = torch.Generator().manual_seed(7)
        for _ in range(steps):
            x = torch.randn(BATCH, 6, generator=generator)
            yield self.share((x, torch.randint(0, 3, (BATCH,), generator=generator)))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 3))


def begun(here: Here, **options: Any) -> tuple[Any, Any]:
    """A model of vectors and its optimizer."""
    model = here.model(net())
    return model, here.optimizer(torch.optim.AdamW(model.parameters(), lr=0.01, **options))


Loop = Callable[[Here], nn.Module]
"""Trains a model of its own making, and returns it."""


def same(loop: Loop, **settings: Any) -> None:
    """Hold what a loop trains on workers against what it trains in plain torch."""
    roles.stop()  # a job of an earlier loop
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    found = []
    for here in (Here(distributed=False), Here(distributed=True)):
        torch.manual_seed(0)
        found.append(_numbers(loop(here)))
        assert here.have_moved(), "the loop must have trained"
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


def said(loop: Callable[[], Any]) -> list[str]:
    """What a loop makes fleetx warn of, on this worker."""
    found: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("fleetx")
    logger.addHandler(handler)
    try:
        loop()
    finally:
        logger.removeHandler(handler)
    return found


def _numbers(model: nn.Module) -> dict[str, Tensor]:
    """What it holds; every worker puts together what is cut."""
    state = {name: value.detach().clone().float() for name, value in model.state_dict().items()}
    whole = {
        name: getattr(value, "full_tensor", lambda v=value: v)() for name, value in state.items()
    }
    return {name: value for name, value in whole.items() if value.numel()}
